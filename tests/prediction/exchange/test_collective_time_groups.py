"""Collectives in groups of ranks, and HSDP, which is made of them."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.prediction import Prediction, Predictor
from paceline.prediction.exchange.collective_time import collective_seconds, loads, phase_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.strategy.phase import Phase

ON = Cluster.named("4x8 A100", network="100Gb/s")
NET = Workload.named("gpt3-1.3b")


@pytest.mark.parametrize(("members", "stride"), [(8, 1), (4, 8), (16, 1), (2, 1), (2, 16)])
def test_a_group_has_its_own_links_and_its_share_of_the_network(members: int, stride: int) -> None:
    size = 10**8
    phases = [
        Phase("allreduce", (size,), 32),
        Phase("replica_allreduce", (size,), 32, "allreduce", members, stride),
        Phase("gather_forward", (size,), 32, "gather", members, stride),
    ]
    seconds, far = phase_seconds(loads(phases, 8), ON, TYPICAL)
    view = group_view(ON, members, stride)
    each = np.array([float(size)])
    assert seconds[0] == collective_seconds(each, ON, TYPICAL)[0][0]
    assert seconds[1] == collective_seconds(each, view, TYPICAL)[0][0]
    assert seconds[2] == collective_seconds(each, view, TYPICAL, halves=True)[0][0]
    assert bool(far[1]) == (view.num_nodes > 1)


def step(**choices: object) -> Prediction:
    whole = {
        "world_size": 32,
        "global_batch_size": 128,
        "precision": "bf16",
        "optimizer": "adam",
        "sharding": "zero3",
        **choices,
    }
    return Predictor().step(NET, ON, Strategy.of(**{**whole, **choices}))


def test_sharing_inside_a_node_spares_the_network_and_takes_memory() -> None:
    whole, grouped = step(), step(shard_devices=8)
    assert grouped.step_time_s < whole.step_time_s and grouped.memory_bytes > whole.memory_bytes
    for name in ("weights", "gradients", "optimizer state"):
        assert grouped.memory[name] == pytest.approx(4 * whole.memory[name])
    # Two gathers and a scatter of 7/8 in the node, an all-reduce of an eighth between four nodes, all in bf16
    expected = 2 * NET.num_parameters * (3 * 7 / 8 + 2 * 3 / 4 / 8)
    assert grouped.wire_bytes_per_device == pytest.approx(expected, rel=1e-4)
    assert sum(grouped.exposed.values()) == pytest.approx(grouped.step_time_s)


def test_one_group_of_all_is_no_group() -> None:
    whole, grouped = step(), step(shard_devices=32)
    assert grouped.step_time_s == whole.step_time_s and grouped.memory == whole.memory


def test_many_at_once_have_the_numbers_of_each() -> None:
    each = [
        Strategy.of(world_size=32, global_batch_size=64, precision="bf16", optimizer="adam", sharding=x, shard_devices=n)
        for x in ("zero1", "zero2", "zero3")
        for n in (0, 4, 8, 16)
    ]
    table = Predictor().many(NET, [(ON, strategy) for strategy in each])
    for strategy, seconds, needed in zip(each, table.step_s, table.memory_bytes, strict=True):
        p = Predictor().step(NET, ON, strategy)
        assert (seconds, needed) == pytest.approx((p.step_time_s, p.memory_bytes))


def test_groups_beside_a_pipeline() -> None:
    choices = {"pipeline": 2, "tensor": 2, "grad_accum_steps": 4}
    whole, grouped = step(**choices), step(**choices, shard_devices=4)
    assert grouped.memory["weights"] == pytest.approx(2 * whole.memory["weights"])
    assert grouped.exposed["network"] < whole.exposed["network"]


def test_groups_that_nodes_cut_are_refused() -> None:
    odd = Cluster.named("4x6 A100", network="100Gb/s")
    with pytest.raises(UserError, match="groups of 8 devices, 1 apart, do not lie evenly in nodes of 6"):
        Predictor().step(NET, odd, Strategy.of(world_size=24, global_batch_size=24, sharding="zero3", shard_devices=8))
