"""What a target runs of a plan: the best of what it has, what is better beside it, and why nothing is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from facts import facts
from paceline import Cluster, Workload
from paceline.calibration.constants import LEVELS, efficiency
from paceline.errors import UserError
from paceline.planning import Goal, Plan, Space, plan
from paceline.planning.emit.emitted_plan import emitted_plan
from paceline.planning.emit.targets import Emitted
from paceline.prediction import ORDINARY, Predictor


def planned(
    target: str, network: str, cluster: Cluster, predictor: Predictor = ORDINARY, **fields: Any
) -> tuple[Plan, Emitted]:
    workload = Workload.named(network)
    space = Space(clusters=(cluster,), precisions=("bf16",), **{"shardings": ("ddp", "zero3"), **fields})

    def search(narrowed: Mapping[str, Any], offers: bool) -> Plan:
        return plan(workload, replace(space, **narrowed), Goal("fastest"), offers=offers, predictor=predictor)

    return emitted_plan(target, workload, (cluster,), search, predictor)


@pytest.mark.parametrize(
    ("target", "option"), [("megatron", "--tp-comm-overlap\n"), ("nemo", "CommOverlapConfig,tp_comm_overlap:true}\n")]
)
def test_the_exchanges_that_tuned_software_overlaps_are_switched_on(target: str, option: str) -> None:
    for level in LEVELS:
        _, file = planned(target, "gpt2-large", Cluster.named("2 A100"), Predictor(constants=efficiency(level)), **TENSOR)
        assert (option in file.text) == (level == "tuned")


TENSOR: dict[str, Any] = {"batches": (8,), "tensors": (2,), "pipelines": (1,), "contexts": (1,)}


def test_where_nothing_is_better_nothing_is_remarked() -> None:
    best, file = planned("deepspeed", "resnet-50", Cluster.named("2 A100"), batches=(256,))
    assert file.job.strategy == best.best.strategy and file.job.remark == ""


def test_what_is_better_and_cannot_be_written_is_said() -> None:
    cards, given = Cluster.named("4 RTX 4090"), {"batches": (1024,), "shardings": ("ddp", "distributed_optimizer")}
    best, file = planned("torchrun", "resnet-50", cards, **given)
    assert file.job.strategy == best.best.strategy and best.best.strategy.parallelism.sharding.name != "distributed_optimizer"
    assert "torchrun has no option for distributed_optimizer" in file.job.remark
    assert "Better: 4 RTX 4090, batch 1024, bf16, distributed_optimizer: " in file.job.remark
    assert f"# {file.job.remark}\n" in file.text


def test_divided_networks_that_were_not_tried_are_named() -> None:
    _, file = planned("torchrun", "gpt2-xl", Cluster.named("8 A10G"), batches=(64,), shardings=("zero3",))
    assert re.search(facts("Not tried", "torchrun", "networks divided by tensor"), file.job.remark)


def test_what_a_target_lacks_is_named_where_nothing_else_fits() -> None:
    tensor_alone: dict[str, Any] = {"shardings": ("zero3",), "tensors": (2, 4), "contexts": (1, 2), "pipelines": (1,)}
    with pytest.raises(UserError) as refused:
        planned("torchrun", "llama-3-8b", Cluster.named("8 A10G"), batches=(8,), **tensor_alone)
    message, fix = refused.value.message, refused.value.fix
    assert message.startswith("torchrun has no option for ") and "The best here has it: 8 A10G, batch 8" in message
    assert "Without it llama-3-8b fits on no device here" in message and "this fits" not in str(refused.value)
    assert "megatron" in fix


@pytest.mark.parametrize("target", ["torchrun", "deepspeed", "megatron"])
def test_a_tpu_is_refused_before_anything_is_searched(target: str) -> None:
    cluster = Cluster.named("8 TPU v4")
    with pytest.raises(UserError, match=facts("device TPU v4", "PyTorch/XLA", "JAX")):
        emitted_plan(target, Workload.named("gpt2"), (cluster,), None, ORDINARY)  # type: ignore[arg-type]
