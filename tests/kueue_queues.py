"""Small queues of Kueue and Volcano for tests, as ``kubectl get -o json`` prints them."""

from __future__ import annotations

import json
from typing import Any

from paceline.scheduling.starts.live_source import read_waiting_queue
from paceline.scheduling.starts.waiting_queue import WaitingQueue

KUEUE = "kueue.x-k8s.io/v1beta1"
NOW_S = 1793523600.0
"""2026-11-01 09:00 UTC."""
GPU = "nvidia.com/gpu"


def cluster_queue(name: str, nominal: int, resource: str = GPU, **more: Any) -> dict[str, Any]:
    """A ClusterQueue of the cohort ``all``, with one flavor."""
    limits = {key: more.pop(key) for key in ("borrowingLimit", "lendingLimit") if key in more}
    quota = {"name": resource, "nominalQuota": nominal, **limits}
    groups = [{"coveredResources": [resource], "flavors": [{"name": "default", "resources": [quota]}]}]
    spec = {"cohort": "all", **more, "resourceGroups": groups}
    return {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}


def local_queue(name: str, queue: str, **more: Any) -> dict[str, Any]:
    """A LocalQueue of the namespace ``ns``."""
    about = {"name": name, "namespace": "ns"}
    return {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": about, "spec": {"clusterQueue": queue, **more}}


def workload(
    name: str, queue: str, gpus: int, at: str, runs_in: str = "", limit_s: int = 3600, resource: str = GPU, **more: Any
) -> dict[str, Any]:
    """A Workload of a day. ``at``: hour and minute of its creation. ``runs_in``: cluster queue that admitted it then."""
    about = {"name": name, "namespace": "ns", "creationTimestamp": f"2026-11-01T{at}:00Z", "labels": more.pop("labels", {})}
    pod = {"containers": [{"name": "c", "resources": {"requests": {resource: str(gpus)}}}]}
    sets = [{"name": "main", "count": 1, "template": {"spec": pod}}]
    spec = {"queueName": queue, "maximumExecutionTimeSeconds": limit_s, "podSets": sets, **more}
    status: dict[str, Any] = {}
    if runs_in:
        given = [{"name": "main", "flavors": {resource: "default"}, "count": 1}]
        when = {"status": "True", "lastTransitionTime": about["creationTimestamp"]}
        status = {"admission": {"clusterQueue": runs_in, "podSetAssignments": given}}
        status["conditions"] = [{"type": kind, **when} for kind in ("QuotaReserved", "Admitted")]
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": about, "spec": spec, "status": status}


def volcano_queue(name: str, capability: int) -> dict[str, Any]:
    """A Queue of Volcano."""
    about = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}}
    return {**about, "spec": {"capability": {GPU: capability}}}


def volcano_job(name: str, gpus: list[int], at: str, gang: int = 0, runs: bool = False) -> dict[str, Any]:
    """A Job of Volcano with one pod for each number of GPUs."""
    about = {"name": name, "namespace": "ns", "creationTimestamp": f"2026-11-01T{at}:00Z"}
    tasks = [
        {"replicas": 1, "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {GPU: count}}}]}}}
        for count in gpus
    ]
    spec = {"queue": "q", "minAvailable": gang or len(gpus), "runningEstimate": "2h", "tasks": tasks}
    state = {"phase": "Running" if runs else "Pending", "lastTransitionTime": about["creationTimestamp"]}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": about,
        "spec": spec,
        "status": {"state": state},
    }


def kueue_text(*objects: dict[str, Any]) -> str:
    """The text of a list of objects, with the flavor of all queues of Kueue."""
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "default"}, "spec": {}}
    own = [flavor] if any(item["apiVersion"] == KUEUE for item in objects) else []
    return json.dumps({"kind": "List", "items": [*own, *objects]})


def kueue_queue(*objects: dict[str, Any], **given: Any) -> WaitingQueue:
    """The queue of some objects at nine o'clock."""
    return read_waiting_queue("-", stdin=lambda: kueue_text(*objects), now_s=NOW_S, **given)
