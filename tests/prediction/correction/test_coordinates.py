"""Where a step lies as seen from another: one node has no network that could be another's."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.hardware import cluster
from paceline.prediction.correction.gaussian_process import Position, coordinates
from paceline.strategy import Strategy
from paceline.workload import Workload

LINK = 8  # of the ten coordinates


def place(nodes: int, network: str | None = None) -> Position:
    machines = cluster("V100", 4, nodes, network)
    strategy = Strategy.of(world_size=machines.world_size, global_batch_size=8 * machines.world_size)
    return Position.of(Workload.named("lenet5"), machines, strategy)


ALONE, SLOW, FAST = place(1), place(2, "10Gb/s"), place(2, "100Gb/s")


@pytest.mark.parametrize(
    ("here", "there", "apart"),
    [(SLOW, FAST, True), (SLOW, SLOW, False), (ALONE, SLOW, False), (SLOW, ALONE, False), (ALONE, ALONE, False)],
)
def test_only_two_networks_between_nodes_are_apart(here: Position, there: Position, apart: bool) -> None:
    mine, its = coordinates([here, there], here.names)
    assert bool(mine[LINK] != its[LINK]) == apart


def test_a_place_is_nowhere_but_at_itself() -> None:
    mine, its = coordinates([SLOW, FAST], SLOW.names)
    assert np.flatnonzero(mine != its).tolist() == [LINK]
