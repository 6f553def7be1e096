"""Nodes of a queue: which a job may use, and where running jobs are."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.starts.queue_nodes import QueueNodes, guessed_placements
from queues import nodes, runs, waits


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
