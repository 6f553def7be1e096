"""Bounds of exchanges are those of one collective of all bytes: HSDP scatters in the node and adds up between nodes."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy
from paceline.calibration.constants import TYPICAL
from paceline.hardware.hosts import host_share
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.layouts.exchange_bounds import ReplicaGroup, exchange_bounds
from paceline.prediction.passes.offload import host_update_seconds
from paceline.strategy import OPTIMIZERS

NODES = Cluster.named("4x8 H100", network="8x InfiniBand HDR")
ELEMENTS = np.array([4e8])


def group(count: int = 32, view: Cluster = NODES, elements: np.ndarray = ELEMENTS, **choices: object) -> ReplicaGroup:
    inner = Strategy.of(world_size=count, global_batch_size=count, precision="bf16", optimizer="adam", **choices)  # type: ignore[arg-type]
    return ReplicaGroup(inner, view, elements, host_share(NODES.device, 8))


def bounds(*groups: ReplicaGroup) -> tuple[np.ndarray, ...]:
    return exchange_bounds(groups, np.array([100.0]), TYPICAL)


def test_groups_scatter_within_the_node_and_add_up_their_shares_between_nodes() -> None:
    _, micro, *_ = bounds(group(sharding="zero3", shard_devices=8))
    node, across = group_view(NODES, 8, 1), group_view(NODES, 4, 8)
    half = float(collective_seconds(np.array([8e8]), node, TYPICAL, halves=True)[0][0])
    total = float(collective_seconds(np.array([1e8]), across, TYPICAL)[0][0])
    assert micro[0] == pytest.approx(3 * half + total, rel=1e-3)


def test_experts_with_other_replicas_add_their_own_exchange() -> None:
    rest, across = group(sharding="zero3"), group_view(NODES, 4, 8)
    experts = group(4, across, 3 * ELEMENTS, sharding="zero3")
    half = float(collective_seconds(np.array([24e8]), across, TYPICAL, halves=True)[0][0])
    assert bounds(rest, experts)[1][0] - bounds(rest)[1][0] == pytest.approx(3 * half, rel=1e-3)


def test_a_host_updates_the_part_of_its_device() -> None:
    device = bounds(group(sharding="zero1"))[2][0]
    host = bounds(group(sharding="zero1", offload="optimizer"))[2][0]
    expected = host_update_seconds(OPTIMIZERS["adam"], 12_500_000, 2.0, host_share(NODES.device, 8), TYPICAL)
    assert host == pytest.approx(expected) and host > device > 0
