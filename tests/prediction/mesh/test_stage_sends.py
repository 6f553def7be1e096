"""What stages send: bytes of the boundaries, and the link that each crosses."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.hardware.device import Link
from paceline.prediction.mesh.stage_sends import sends, tie_seconds
from paceline.prediction.mesh.stages import stages
from paceline.workload import TransformerShape

S, H, V = 512, 1024, 51200
ON = Cluster.named("2x4 A100", network="100Gb/s")


def gpt(tied: bool) -> Workload:
    return Workload.from_shape(TransformerShape(layers=8, hidden=H, heads=16, vocabulary=V, tied=tied), S)


def seconds(link: Link, size: float, users: int) -> float:
    return TYPICAL.latency(link) + size * users / TYPICAL.bandwidth(link)


def test_each_boundary_carries_the_activations_over_its_own_link() -> None:
    strategy = Strategy.of(world_size=8, pipeline=4, micro_batches=4, global_batch_size=16, precision="bf16")
    size = 2 * S * H * strategy.micro_batch_size
    wait, far, sent = sends(stages(gpt(False), 4, 1), ON, strategy, TYPICAL)
    assert far == [False, True, False], "two stages of two devices each lie in a node"
    assert wait[0] == wait[2] == pytest.approx(seconds(ON.intra_link, size, 1))
    assert wait[1] == pytest.approx(seconds(ON.network, size, 2)), "both pairs share the node's network"
    assert sent == 2 * size * 4, "activations and gradients of four micro batches"


def test_only_a_shared_table_is_added_up_by_the_ends() -> None:
    strategy = Strategy.of(world_size=8, pipeline=4, micro_batches=4, global_batch_size=16, precision="bf16")
    apart, tied = (tie_seconds(stages(gpt(x), 4, 1), ON, strategy, TYPICAL)[0] for x in (False, True))
    assert apart == 0 < 2 * 4 * V * H / ON.network.bandwidth.value < tied
