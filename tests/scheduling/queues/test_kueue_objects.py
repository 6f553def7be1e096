"""Settings of Kueue from its objects."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.scheduling.queues.kueue_objects import parse_kueue
from paceline.scheduling.queues.kueue_settings import ClusterQueue, Cohort, KueueSettings, Quota


def cluster_queue(name: str, resource: str = "nvidia.com/gpu", **spec: Any) -> dict[str, Any]:
    resources = [{"name": "cpu", "nominalQuota": "100"}, {"name": resource, "nominalQuota": 8, "borrowingLimit": "4"}]
    group = {"coveredResources": ["cpu", resource], "flavors": [{"name": "a100", "resources": resources}]}
    return {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {"resourceGroups": [group], **spec}}


def test_queues_cohorts_flavors_and_preemption_are_read() -> None:
    preemption = {
        "withinClusterQueue": "LowerPriority",
        "reclaimWithinCohort": "Any",
        "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
    }
    first = cluster_queue(
        "a", cohortName="ab", queueingStrategy="StrictFIFO", preemption=preemption, fairSharing={"weight": "2"}
    )
    label = {"nvidia.com/gpu.product": "A100-SXM4-80GB"}
    objects = [
        {"kind": "List", "items": [first, cluster_queue("b", cohort="ab", stopPolicy="Hold")]},
        {"kind": "Cohort", "metadata": {"name": "ab"}, "spec": {"parentName": "all"}},
        {"kind": "LocalQueue", "metadata": {"name": "team"}, "spec": {"clusterQueue": "a"}},
        {
            "kind": "ResourceFlavor",
            "metadata": {"name": "a100"},
            "spec": {"nodeLabels": label},
        },
        {"kind": "Configuration", "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]}},
    ]
    quotas = {"a100": Quota(nominal=8, borrowing_limit=4)}
    assert parse_kueue(objects, lambda name: "A100 SXM 80GB") == KueueSettings(
        queues={
            "a": ClusterQueue(
                quotas=quotas,
                cohort="ab",
                strategy="StrictFIFO",
                within="LowerPriority",
                reclaim="Any",
                borrow_within=True,
                borrow_threshold=100,
                weight=2,
            ),
            "b": ClusterQueue(quotas=quotas, cohort="ab", stopped=True),
        },
        cohorts={"ab": Cohort(parent="all")},
        local_queues={"team": "a"},
        flavors={"a100": "A100 SXM 80GB"},
        fair_sharing=True,
    )


def test_a_queue_without_gpus_counts_its_first_resource() -> None:
    (queue,) = parse_kueue([cluster_queue("a", "memory")]).queues.values()
    assert queue.quotas == {"a100": Quota(nominal=100)}


def test_objects_without_a_queue_and_wrong_quantities_are_refused() -> None:
    with pytest.raises(UserError, match=r"no ClusterQueue among the objects \(kinds: Pod\)"):
        parse_kueue([{"kind": "Pod"}])
    wrong = cluster_queue("a")
    wrong["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] = "8 GPUs"
    with pytest.raises(UserError, match="quota '8 GPUs'"):
        parse_kueue([wrong])
