"""Nodes of a queue: which a job may use, and where running jobs are."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota
from paceline.scheduling.starts.queue_nodes import QueueNodes, guessed_placements, nodes_of_quotas
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
    named = [runs("a", 2, 1.0, node_names=("n2",)), runs("b", 3, 1.0, node_names=("n1", "n0")), runs("c", 1, 1.0)]
    assert guessed_placements(there, named) == [((2, 2),), ((1, 2), (0, 1)), ((1, 1),)]


@pytest.mark.parametrize(
    ("device", "wanted", "same"),
    [
        ("A100 SXM 80GB", "NVIDIA-A100-SXM4-80GB", True),
        ("H100 SXM", "NVIDIA-H100-80GB-HBM3", True),
        ("A100 PCIe 80GB", "a100", True),
        ("own-a100_40gb", "a100", True),
        ("A100 SXM 80GB", "a10", False),
        ("A100 SXM 80GB", "NVIDIA-H100-80GB-HBM3", False),
        ("own chip", "own-chip", True),
    ],
)
def test_names_of_one_device_are_one_type(device: str, wanted: str, same: bool) -> None:
    there = QueueNodes(np.array([8]), (device,))
    assert there.pool(waits("x", 1, device_types=(wanted,))) == ((0,) if same else ())


def test_a_flavor_has_the_quotas_of_all_queues_and_cohorts() -> None:
    queues = {
        "a": ClusterQueue(quotas={"x": Quota(nominal=8), "y": Quota(nominal=2)}, cohort="all"),
        "b": ClusterQueue(quotas={"x": Quota(nominal=4)}, cohort="all"),
    }
    cohorts = {"all": Cohort(quotas={"y": Quota(nominal=1)})}
    nodes = nodes_of_quotas(KueueSettings(queues=queues, cohorts=cohorts, flavors={"y": "A100 SXM 80GB"}))
    assert nodes.devices.tolist() == [12, 3] and nodes.types == ("", "A100 SXM 80GB") and nodes.quotas
    assert nodes.of_queue == {"a": (0, 1), "b": (0,)}
    with pytest.raises(UserError, match="no quota"):
        nodes_of_quotas(KueueSettings())


def test_a_job_on_a_draining_node_holds_no_device_of_another() -> None:
    """sinfo(1): a draining node runs its job and takes no other."""
    there = nodes(8, 2, away=("d",))
    jobs = [runs("a", 8, 1.0, node_names=("d",)), runs("b", 8, 1.0, nodes=2, node_names=("d", "n1"))]
    assert guessed_placements(there, jobs) == [(), ((1, 4),)] and guessed_placements(there.joined(), jobs) == [(), ((0, 4),)]
