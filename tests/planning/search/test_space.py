"""What a plan tries: legal values alone, and batches that come from the target."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.prediction.learning.convergence import Point, fit
from paceline.strategy import COMPRESSIONS
from paceline.strategy.frameworks import framework_of
from paceline.workload import Workload


def test_what_was_never_measured_is_unknown(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.planning.search.space.accuracies", lambda name: ())
    barred = replace(space, compressions=(), max_loss=100.0).barred(TrainingTarget())
    assert set(barred) == set(COMPRESSIONS) - {"dense"}
    assert re.search(facts("terngrad", "accuracy unknown", "never measured"), barred["terngrad"])


def test_batches_come_from_the_target_and_never_go_beyond_it(toy: Workload, space: Space) -> None:
    curve = fit([Point(b, 1e6 * (1 + b / 1000)) for b in (64, 256, 1024)], "99 %", "made up")
    work = TrainingTarget(curve=curve)
    free = replace(space, batches=())
    assert free.batches_on(4, work) == (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    assert set(free.batches_on(24, work)) >= {24, 48, 96, 192, 384, 768, 64, 1024} and max(free.batches_on(24, work)) == 1024
    answer = plan(toy, replace(space, batches=(512, 4096)), Goal("fastest"), work)
    assert answer.best.strategy.global_batch_size == 512
    assert any("above 1024 was never seen to reach 99 %" in x.reason for x in answer.excluded)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"compressions": "dense"}, "compressions='dense'"),
        ({"compressions": ("zip",)}, "unknown compression 'zip'"),
        ({"shardings": ("zero4",)}, "unknown sharding 'zero4'"),
        ({"batches": 64}, "batches=64"),
        ({"batches": (64, 0)}, "in batches"),
        ({"servers": (1.5,)}, "in servers"),
    ],
)
def test_a_choice_that_is_no_tuple_of_legal_values_is_refused(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Space(clusters=(), **choices)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"others": {"residual_bits": (8,)}}, "residual_bits=8; give 32"),
        ({"others": {"residuals_at": ("disk",)}}, "unknown place of residuals 'disk'"),
        (
            {"others": {"residuals_at": ("host",)}, "compressions": ("int8", "dense")},
            facts("residuals", "int8", "dense"),
        ),
        ({"others": {"dense_bits": (16,)}, "compressions": ("dense",)}, "name compression bf16"),
    ],
)
def test_residuals_and_dense_numbers_that_nothing_can_have_so_are_refused(
    space: Space, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        replace(space, **choices)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"shardings": ("ddp",), "gather_bits": 16}, "gather_bits=16 with sharding ddp; give zero1"),
        ({"shardings": ("ddp",), "gradient_bits": 16}, "gradient_bits=16 with sharding ddp; give zero1"),
        ({"shardings": ("zero3",), "gather_bits": 4}, "gather_bits=4; give one of 0, 8, 16, 32"),
        ({"shardings": ("ddp", "zero1"), "precisions": ("bf16",), "gather_bits": 8}, "bf16 and zero1, whose weights"),
        ({"shardings": ("zero3",), "precisions": ("mxfp8",), "gather_bits": 8}, "mxfp8 and zero3, whose weights"),
    ],
)
def test_bits_that_no_strategy_can_have_are_refused(space: Space, choices: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        replace(space, **choices)


def test_a_codec_where_none_of_the_compressions_can_be_is_refused(space: Space) -> None:
    with pytest.raises(UserError, match=facts("network card", "terngrad")):
        replace(space, compressions=("terngrad",), others={"codec_at": ("nic",)})


def test_frameworks_without_a_pipeline_divide_nothing_unless_told() -> None:
    space = Space(clusters=(Cluster.named("8 H100"),))
    assert space.on(framework_of("megatron")) == space.on(framework_of("ordinary")) == space
    whole = space.on(framework_of("hf-trainer"))
    assert whole.tensors == whole.pipelines == whole.contexts == whole.experts == (1,)
    named = Space(clusters=(Cluster.named("8 H100"),), tensors=(2,))
    assert named.on(framework_of("hf-trainer")) == named
