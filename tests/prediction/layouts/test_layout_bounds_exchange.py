"""Bounds of exchanges are those of one collective of all bytes: HSDP scatters in the node and adds up between nodes."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy
from paceline.calibration.constants import TYPICAL
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.layouts.layout_bounds import exchange_bounds

NODES = Cluster.named("4x8 A100", network="8x InfiniBand HDR")
ELEMENTS = np.array([4e8]), np.array([100.0]), np.array([0.0])


def bounds(**choices: object) -> tuple[np.ndarray, ...]:
    inner = Strategy.of(world_size=32, global_batch_size=32, precision="bf16", optimizer="adam", **choices)  # type: ignore[arg-type]
    return exchange_bounds(inner, NODES, TYPICAL, ELEMENTS, 1)


def test_groups_scatter_within_the_node_and_add_up_their_shares_between_nodes() -> None:
    _, micro, _, _, _ = bounds(sharding="zero3", shard_devices=8)
    node, across = group_view(NODES, 8, 1), group_view(NODES, 4, 8)
    half = float(collective_seconds(np.array([8e8]), node, TYPICAL, halves=True)[0][0])
    total = float(collective_seconds(np.array([1e8]), across, TYPICAL)[0][0])
    assert micro[0] == pytest.approx(3 * half + total, rel=1e-3)


def test_nothing_is_updated_on_a_device_whose_host_updates() -> None:
    assert bounds(sharding="zero1")[2][0] > 0 == bounds(sharding="zero1", offload="optimizer")[2][0]
