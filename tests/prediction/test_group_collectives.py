"""Collectives within the passes: their bytes and seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from expert_toys import A100, EXPERTS, SHAPE, TOKENS, TWO_NODES, parts, step, strategy
from paceline import Cluster, Workload
from paceline.calibration.constants import efficiency
from paceline.prediction import Predictor
from paceline.prediction.group_collectives import group_seconds, group_work
from paceline.prediction.network import alltoall_seconds
from paceline.prediction.tensor_parallel import Collective


def test_bytes_of_the_all_to_alls_are_their_closed_form() -> None:
    own = parts(expert=8, grad_accum_steps=2)
    # 4 in a block, 7/8 of 2 copies of each of 512 tokens of 4 samples, in bf16
    assert own.group_bytes[0] == pytest.approx(4 * SHAPE.layers * 7 / 8 * 2 * 512 * 4 * 1024 * 2)


def test_tuned_software_sends_a_token_once_to_a_node() -> None:
    slow = Cluster.named("4x2 A100", network="25Gb/s")
    waits = [
        step(
            slow,
            Workload.from_shape(replace(SHAPE, experts=replace(EXPERTS, active=8)), TOKENS),
            Predictor(software=s),
            expert=8,
        )
        for s in ("ordinary", "tuned")
    ]
    assert waits[1].exposed["network"] < 0.7 * waits[0].exposed["network"]


def test_slower_links_make_a_longer_step() -> None:
    own = parts(TWO_NODES, expert=16, global_batch_size=64)
    times = [own.seconds_with_links(between, 1.0) for between in (0.5, 1.0, 2.0)]
    assert times == sorted(times) and times[1] == pytest.approx(own.seconds)


def test_collectives_of_a_group_that_nothing_is_asked_of_take_no_time() -> None:
    seconds, far = group_seconds([], A100, strategy(), efficiency("ordinary"))
    assert len(seconds) == len(far) == 0 and group_work([], seconds, strategy()) == {}


def test_work_of_a_layer_is_that_of_all_its_micro_batches() -> None:
    asked = [Collective(3, back, "alltoall", 4e6, group="expert", copies=2.0) for back in (False, True)]
    chosen = strategy(expert=8, grad_accum_steps=2)
    seconds, far = group_seconds(asked, A100, chosen, efficiency("ordinary"))
    assert seconds[0] == seconds[1] and not far.any()
    assert seconds[0] == pytest.approx(alltoall_seconds(np.array([2 * 2e6]), A100, efficiency("ordinary"))[0][0])
    assert group_work(asked, seconds, chosen) == {3: (pytest.approx(4 * seconds[0]), pytest.approx(2 * 2 * 2 * 7 / 8 * 2e6))}
