"""The queue at a moment: its order, its nodes, and where running jobs are."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.starts.waiting_queue import QueueNodes, guessed_placements
from queues import NOW, nodes, queue, runs, waits


def test_jobs_are_ordered_and_those_that_cannot_start_are_said() -> None:
    found = queue(
        runs("r", 8, 60.0),
        waits("late", 1, priority=5.0, since_s=10.0),
        waits("first", 1, priority=5.0, since_s=90.0),
        waits("high", 1, priority=9.0, since_s=1.0),
        waits("huge", 64, priority=1.0),
        waits("held", 1, reason="JobHeldUser"),
        waits("zero", 1),
        waits("slice", 1, priority=1.0, profile="1g.5gb"),
        waits("begins", 1, priority=4.0, reason="BeginTime", planned_start_s=NOW + 3600),
    )
    assert [job.name for job in found.waiting] == ["high", "first", "late", "begins"]
    assert [job.name for job in found.held] == ["held", "zero"]
    assert [(row.name, row.detail) for row in found.skipped] == [("huge", "64 of 8"), ("slice", "1g.5gb")]
    assert found.waiting[-1].eligible_s == NOW + 3600
    with pytest.raises(UserError, match="runs already"):
        found.job("r")
    with pytest.raises(UserError, match="first"):
        found.job("firts")


def test_nodes_of_partitions_and_types() -> None:
    two = QueueNodes(np.array([8, 4]), ("A100 SXM 80GB", "V100"), ("a", "b"), {"big": (0,), "all": (0, 1)})
    assert two.pool(waits("x", 1, queue="big")) == (0,) and two.pool(waits("x", 1, queue="all", device_types=("v100",))) == (1,)
    assert two.pool(waits("x", 1, queue="big,all")) == (0, 1)
    assert QueueNodes.of(Fleet.named("2x8xA100 + 1x4xV100")).joined().devices.tolist() == [16, 4]
    assert two.joined().of_queue == {"big": (0,), "all": (0, 1)}


def test_running_jobs_are_on_the_nodes_that_the_log_names_or_where_they_fit() -> None:
    there = nodes(8, 3)
    placed = guessed_placements(there, [runs("a", 8, 1.0, nodes=1), runs("b", 16, 1.0, nodes=2)])
    assert sorted(node for placement in placed for node, _ in placement) == [0, 1, 2]
