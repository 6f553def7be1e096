"""Muon's exchange of matrices: its bytes, as the optimizer sends them, and its seconds."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.exchange.matrix_exchange import matrix_bytes, matrix_exchange_seconds, orthogonalizers
from paceline.prediction.passes.orthogonal import matrix_elements
from paceline.strategy import Strategy
from paceline.workload import Workload

NET = Workload.named("llama-3.2-1b")
E = matrix_elements(NET)
NODES = Cluster.named("2x4 H100", network="100Gb/s")


def strategy(optimizer: str = "muon", **choices: Any) -> Strategy:
    return Strategy.of(world_size=8, global_batch_size=8, precision="bf16", optimizer=optimizer, **choices)


CASES: list[tuple[dict[str, Any], int, tuple[float, float]]] = [
    ({}, 8, (0, 2 * E)),
    ({"sharding": "zero3"}, 8, (2 * E / 8, 0)),
    ({"sharding": "zero3", "shard_devices": 4}, 8, (2 * E / 8, 2 * E / 4)),
    ({"sharding": "zero1"}, 8, (0, 0)),
    ({"sync_every": 4}, 1, (0, 0)),
    ({"sync_every": 4, "sharding": "zero3", "shard_devices": 4}, 4, (2 * E / 4, 0)),
    ({"tensor": 2}, 1, (0, 0)),
    ({"optimizer": "adamw"}, 8, (0, 0)),
]


@pytest.mark.parametrize(("choices", "sharing", "sizes"), CASES, ids=str)
def test_bytes(choices: dict[str, Any], sharing: int, sizes: tuple[float, float]) -> None:
    chosen = strategy(**choices)
    assert matrix_bytes(NET, chosen) == sizes and orthogonalizers(chosen) == sharing


def test_seconds_are_those_of_the_slower_link() -> None:
    """A gather of n bytes takes 7/8 of them through each node's link, in one of two nodes, and an all-to-all less."""
    constants = Predictor().constants
    near, far = matrix_exchange_seconds(NET, strategy(), NODES, constants)
    least = 2 * E / 2 / constants.bandwidth(NODES.network, 2)
    assert near == 0 and least < far < 2.5 * least
    _, there = matrix_exchange_seconds(NET, strategy(sharding="zero3"), NODES, constants)
    assert 0 < there < far
    inside, between = matrix_exchange_seconds(NET, strategy(), Cluster.named("8 H100"), constants)
    assert inside > 0 and between == 0
    found = Predictor().step(NET, NODES, strategy())
    assert found.exposed["network"] > far > 0.1 * found.exposed["network"]
