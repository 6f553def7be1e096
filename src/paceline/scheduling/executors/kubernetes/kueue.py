"""Objects of Kueue: the LocalQueue of the jobs, its flavors and quotas, and Workloads.

Fields are those of ``kueue.x-k8s.io`` ``v1beta1`` and ``v1beta2``. A user without rights on ClusterQueues and ResourceFlavors,
which belong to the cluster, gets no quotas here, and Kueue keeps its jobs waiting instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UserError, unknown
from paceline.scheduling.executors.kubernetes.api import MERGE, Api, Object
from paceline.scheduling.executors.kubernetes.quantity import quantity

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"
_CUSTOM = "CustomObjectsApi"


@dataclass(frozen=True)
class Flavor:
    """Flavor of a resource in a queue.

    Attributes:
        labels: node labels that its nodes have. ``tolerates``: keys of taints that its jobs tolerate.
        quota: devices that the queue may use at most, with borrowing; inf if its cohort sets the limit.
        used: devices in use by jobs of the queue.
    """

    name: str
    labels: Mapping[str, str]
    tolerates: frozenset[str] = frozenset()
    quota: float = math.inf
    used: float = 0.0

    def has(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels belongs to the flavor."""
        return self.labels.items() <= labels.items()


class Kueue:
    """Queue of a namespace. Raises UserError if the cluster has no Kueue or no such queue."""

    def __init__(self, api: Api, queue: str) -> None:
        self._api, self._queue = api, queue
        groups = (api.call("list API groups", "ApisApi", "get_api_versions") or {}).get("groups") or []
        served = [v["version"] for group in groups if group["name"] == GROUP for v in group["versions"]]
        self.version = next((version for version in VERSIONS if version in served), "")
        if not self.version:
            has = f"it serves {', '.join(served)}" if served else "it has none"
            raise UserError(
                f"the cluster does not serve Kueue's {' or '.join(VERSIONS)}: {has}", "install Kueue, or give no queue"
            )
        self._cluster_queue = self._find_queue()

    def _find_queue(self) -> str:
        found = self._named("localqueues", self._queue)
        if found is None:
            every = self._api.list("list queues", _CUSTOM, "list_namespaced_custom_object", *self._kind("localqueues"))
            names = [each["metadata"]["name"] for each in (every[0] if every else [])]
            raise unknown(f"queue of namespace {self._api.namespace}", self._queue, names)
        return str(found["spec"]["clusterQueue"])

    def _kind(self, plural: str) -> tuple[str, str, str, str]:
        return GROUP, self.version, self._api.namespace, plural

    def _named(self, plural: str, name: str) -> Object | None:
        return self._api.call(f"read {plural} {name}", _CUSTOM, "get_namespaced_custom_object", *self._kind(plural), name)

    def _of_cluster(self, plural: str, name: str) -> Object | None:
        """Return an object of the cluster; None if it is missing or the user may not read it."""
        try:
            return self._api.call(
                f"read {plural} {name}", _CUSTOM, "get_cluster_custom_object", GROUP, self.version, plural, name
            )
        except UserError:
            return None

    def flavors(self, resource: str) -> list[Flavor] | None:
        """Return the flavors of a resource in the order of the queue; None if they are unknown.

        Raises UserError for a resource that the queue does not have.
        """
        queue = self._of_cluster("clusterqueues", self._cluster_queue)
        if queue is None:
            return None
        spec, covered = queue.get("spec") or {}, set[str]()
        used = _used(queue, resource)
        flavors = []
        for group in spec.get("resourceGroups") or []:
            covered |= set(group.get("coveredResources") or [])
            for entry in group.get("flavors") or []:
                for limit in entry.get("resources") or []:
                    if limit.get("name") == resource:
                        flavors.append(self._flavor(entry["name"], limit, spec, used.get(entry["name"], 0.0)))
        if not flavors:
            raise UserError(
                f"queue {self._queue} gives no {resource}",
                f"it gives {', '.join(sorted(covered)) or 'nothing'}: give `resource`",
            )
        return flavors

    def _flavor(self, name: str, limit: Mapping[str, Any], queue: Mapping[str, Any], used: float) -> Flavor:
        found = (self._of_cluster("resourceflavors", name) or {}).get("spec") or {}
        quota = quantity(limit.get("nominalQuota", 0))
        if queue.get("cohort") or queue.get("cohortName"):
            quota += quantity(limit["borrowingLimit"]) if limit.get("borrowingLimit") is not None else math.inf
        taints = [*(found.get("tolerations") or []), *(found.get("nodeTaints") or [])]
        return Flavor(name, found.get("nodeLabels") or {}, frozenset(t["key"] for t in taints if t.get("key")), quota, used)

    def workloads(self) -> dict[str, list[Object]]:
        """Return the unfinished Workloads of the namespace by the uid of their Job, oldest first."""
        found = self._api.list("list workloads", _CUSTOM, "list_namespaced_custom_object", *self._kind("workloads"))
        by_job: dict[str, list[Object]] = {}
        for each in sorted(found[0] if found else [], key=lambda w: w["metadata"].get("creationTimestamp", "")):
            if condition(each, "Finished") is None:
                uids = [owner["uid"] for owner in each["metadata"].get("ownerReferences") or []]
                for uid in uids or [(each["metadata"].get("labels") or {}).get(JOB_UID, "")]:
                    by_job.setdefault(uid, []).append(each)
        return by_job

    def set_active(self, workload: Object, active: bool) -> None:
        """Stop a Workload, which frees its quota and suspends its Job, or put it back into the queue."""
        head = workload["metadata"]
        body = {"metadata": {"resourceVersion": head["resourceVersion"]}, "spec": {"active": active}}
        doing = f"{'start' if active else 'stop'} workload {head['name']}"
        name = head["name"]

        def write(found: Object) -> Object | None:
            body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
            words = (*self._kind("workloads"), name, body)
            return self._api.call(doing, _CUSTOM, "patch_namespaced_custom_object", *words, _content_type=MERGE)

        self._api.change(doing, lambda: self._named("workloads", name), write)


def _used(queue: Mapping[str, Any], resource: str) -> dict[str, float]:
    """Return the use of a resource by flavor, from the status of a ClusterQueue."""
    used = {}
    for flavor in (queue.get("status") or {}).get("flavorsUsage") or []:
        for entry in flavor.get("resources") or []:
            if entry.get("name") == resource:
                used[flavor["name"]] = quantity(entry.get("total", 0))
    return used


def used_by(workloads: Sequence[Mapping[str, Any]], resource: str) -> dict[str, float]:
    """Return the use of a resource by flavor, of these Workloads that are admitted."""
    used: dict[str, float] = {}
    for each in workloads:
        admission = (each.get("status") or {}).get("admission") or {}
        for given in (admission.get("podSetAssignments") or []) if condition(each, "Admitted") else []:
            flavor = (given.get("flavors") or {}).get(resource)
            if flavor is not None:
                used[flavor] = used.get(flavor, 0.0) + quantity((given.get("resourceUsage") or {}).get(resource, 0))
    return used


def condition(found: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """Return a condition of an object that has this status; None if there is none."""
    conditions: Sequence[Mapping[str, Any]] = (found.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind and each.get("status") == status), None)


def is_active(workload: Mapping[str, Any]) -> bool:
    """Return whether a Workload may run."""
    return bool((workload.get("spec") or {}).get("active", True))


def why_waiting(workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return why Kueue has not admitted the newest Workload of a Job; empty if it has."""
    if not workloads:
        return "Kueue has not seen it yet"
    newest = workloads[-1]
    if condition(newest, "Admitted"):
        return ""
    for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("PodsReady", "False")):
        found = condition(newest, kind, status)
        is_old = str((found or {}).get("reason", "")).startswith("Deactivated") and is_active(newest)
        if found is not None and not is_old:
            return f"Kueue: {found.get('message') or found.get('reason') or kind}"
    return "Kueue: in the queue"
