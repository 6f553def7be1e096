"""Jobs, pods and Workloads of a schedule on Kubernetes at one moment, and changes to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.executors.kubernetes.api import MERGE, Api, Exists, Object
from paceline.scheduling.executors.kubernetes.kueue import Flavor, Kueue, condition, used_by
from paceline.scheduling.executors.kubernetes.manifest import CONTAINER, REPORT, service_manifest
from paceline.scheduling.executors.kubernetes.nodes import NodeDevicesOffer, is_alive, offers
from paceline.scheduling.executors.kubernetes.settings import (
    GATE,
    HOST,
    JOB_LABEL,
    SCHEDULE_LABEL,
    START,
    KubernetesSettings,
)

INDEX = "batch.kubernetes.io/job-completion-index"
OTHERS_S = 15.0
"""Seconds for which a list of the pods of all namespaces is used."""
_BATCH, _CORE = "BatchV1Api", "CoreV1Api"


@dataclass(frozen=True)
class ClusterLook:
    """Objects of a schedule at one moment.

    Attributes:
        jobs: Jobs by the name of the job, oldest first. ``pods``: pods likewise.
        workloads: Workloads of Kueue by the uid of their Job.
    """

    jobs: Mapping[str, Sequence[Object]]
    pods: Mapping[str, Sequence[Object]]
    workloads: Mapping[str, Sequence[Object]] = field(default_factory=dict)


class KubernetesCluster:
    """Cluster of a schedule. Every method raises Unavailable or UserError as ``Api.call``.

    Args:
        schedule: label of all objects of the schedule.
    """

    def __init__(self, settings: KubernetesSettings, schedule: str) -> None:
        self._settings, self._schedule = settings, schedule
        self.api = Api(settings.context, settings.namespace)
        self._kueue: Kueue | None = None
        self._version = ""
        self._others: tuple[float, list[Object]] = (-OTHERS_S, [])
        self._hosts: dict[str, str] = {}
        self._nodes: list[NodeDevicesOffer] = []

    @property
    def _labels(self) -> str:
        return f"{SCHEDULE_LABEL}={self._schedule}"

    @property
    def kueue(self) -> Kueue | None:
        """Queue of the schedule; None without Kueue."""
        if self._settings.queue and self._kueue is None:
            self._kueue = Kueue(self.api, self._settings.queue)
        return self._kueue

    def look(self) -> ClusterLook:
        """Return the present objects."""
        namespace = self.api.namespace
        found = self.api.list("list jobs", _BATCH, "list_namespaced_job", namespace, label_selector=self._labels)
        jobs, self._version = found or ([], "")
        pods = self.api.list("list pods", _CORE, "list_namespaced_pod", namespace, label_selector=self._labels)
        workloads = self.kueue.workloads() if self.kueue is not None else {}
        return ClusterLook(_by_job(jobs), _by_job(pods[0] if pods else []), workloads)

    def wait(self, seconds: float) -> bool:
        """Wait for a change of a Job since the last look, and return whether there was one."""
        if not self._version:
            time.sleep(seconds)
            return False
        changed = self.api.changes(
            self._version, seconds, _BATCH, "list_namespaced_job", self.api.namespace, label_selector=self._labels
        )
        self._version = self._version if changed is None else changed
        return changed is not None

    def nodes(self) -> list[NodeDevicesOffer]:
        """Return the nodes whose devices the schedule's jobs may use."""
        found = self.api.list("list nodes", _CORE, "list_node")
        nodes = found[0] if found else []
        flavors: list[Flavor] | None = self.kueue.flavors(self._settings.resource) if self.kueue is not None else None
        look, held = self.look(), Counter[str]()
        pods = [pod for each in look.pods.values() for pod in each]
        for pod in pods:
            node = pod["spec"].get("nodeName", "")
            if node and is_alive(pod):
                held[node] += devices_of(pod["spec"], self._settings.resource)
        uids = {pod["metadata"]["uid"] for pod in pods}
        if flavors is not None:
            jobs = [job["metadata"]["uid"] for each in look.jobs.values() for job in each]
            own = used_by([w for uid in jobs for w in look.workloads.get(uid, ())], self._settings.resource)
            flavors = [replace(flavor, used=flavor.used - own.get(flavor.name, 0.0)) for flavor in flavors]
        self._hosts = {n["metadata"]["name"]: (n["metadata"].get("labels") or {}).get(HOST, "") for n in nodes}
        self._nodes = offers(nodes, self._pods_of_all(), self._settings.resource, held, uids, flavors)
        return self._nodes

    def _pods_of_all(self) -> list[Object]:
        """Return the placed pods of all namespaces that the user may see."""
        at_s, pods = self._others
        if time.monotonic() - at_s < OTHERS_S:
            return pods
        placed = {"field_selector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
        try:
            found = self.api.list("list pods", _CORE, "list_pod_for_all_namespaces", **placed)
        except UserError:  # without rights on other namespaces
            found = self.api.list("list pods", _CORE, "list_namespaced_pod", self.api.namespace, **placed)
        self._others = (time.monotonic(), found[0] if found else [])
        return self._others[1]

    def selector(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the node labels of the flavor that has these nodes; empty without Kueue.

        Raises UserError for nodes of several flavors, because Kueue gives all pods of a Job one flavor.
        """
        by_name = {node.name: node.flavor for node in self._nodes}
        flavors = {flavor.name: flavor for name in nodes if (flavor := by_name.get(name)) is not None}
        if len(flavors) > 1:
            raise UserError(
                f"nodes {', '.join(nodes)} have the flavors {' and '.join(sorted(flavors))}, and Kueue gives a job one",
                "limit its `device_types`, or give a queue with one flavor for each device type",
            )
        return dict(next(iter(flavors.values())).labels) if flavors else {}

    def host(self, node: str) -> str:
        """Return the label by which a pod is bound to a node."""
        return self._hosts.get(node) or node

    def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create a Job and its Service. Objects that exist are left alone. Raises QuotaExceeded."""
        name, namespace = manifest["metadata"]["name"], self.api.namespace
        doing = f"create job {manifest['metadata']['labels'][JOB_LABEL]}"
        try:
            job = self.api.call(doing, _BATCH, "create_namespaced_job", namespace, dict(manifest))
            if job is not None and (dropped := _dropped(job["spec"], manifest["spec"])):
                self.delete(job)
                raise UserError(f"the API server has dropped {' and '.join(dropped)}", "use Kubernetes 1.30 or later")
        except Exists:
            job = self.api.call(doing, _BATCH, "read_namespaced_job", name, namespace)
        if job is None:
            raise UserError(f"Kubernetes does not {doing}: it has no namespace {namespace}", "create it, or give `namespace`")
        with suppress(Exists):
            self.api.call(f"create service {name}", _CORE, "create_namespaced_service", namespace, service_manifest(job))
        return job

    def delete(self, job: Mapping[str, Any]) -> None:
        """Delete a Job with its pods, which get their grace period."""
        name = job["metadata"]["name"]
        with suppress(Exists):
            self.api.call(
                f"delete job {name}",
                _BATCH,
                "delete_namespaced_job",
                name,
                self.api.namespace,
                propagation_policy="Background",
            )

    def change_job(self, job: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        """Change fields of a Job's spec. Raises Invalid if one is immutable."""
        name, namespace = job["metadata"]["name"], self.api.namespace
        doing = f"change job {name}"

        def write(found: Object) -> Object | None:
            body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": dict(spec)}
            return self.api.call(doing, _BATCH, "patch_namespaced_job", name, namespace, body, _content_type=MERGE)

        self.api.change(doing, lambda: self.api.call(doing, _BATCH, "read_namespaced_job", name, namespace), write)

    def place(self, pod: Mapping[str, Any], node: str, start: str) -> None:
        """Bind a gated pod to a node and remove the gate."""
        spec = pod["spec"]
        gates = [gate for gate in spec.get("schedulingGates") or [] if gate["name"] != GATE]
        selector = {**(spec.get("nodeSelector") or {}), HOST: self.host(node)}
        self._change_pod(pod, {"nodeSelector": selector, "schedulingGates": gates}, start)

    def tell_start(self, pod: Mapping[str, Any], start: str) -> None:
        """Tell a running pod to start its command again at another size."""
        self._change_pod(pod, None, start)

    def _change_pod(self, pod: Mapping[str, Any], spec: Mapping[str, Any] | None, start: str) -> None:
        head = pod["metadata"]
        name, doing, namespace = head["name"], f"place pod {head['name']}", self.api.namespace

        def write(found: Object) -> Object | None:
            if found["metadata"]["uid"] != head["uid"]:
                return None
            change = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {START: start}}
            body: Object = {"metadata": change, **({"spec": dict(spec)} if spec else {})}
            return self.api.call(doing, _CORE, "patch_namespaced_pod", name, namespace, body, _content_type=MERGE)

        self.api.change(doing, lambda: self.api.call(doing, _CORE, "read_namespaced_pod", name, namespace), write)

    def kill(self, pod: Mapping[str, Any]) -> None:
        """Delete a pod without more grace."""
        name = pod["metadata"]["name"]
        self.api.call(f"kill pod {name}", _CORE, "delete_namespaced_pod", name, self.api.namespace, grace_period_seconds=0)

    def report(self, pod: Mapping[str, Any]) -> str:
        """Return the last report in the log of a pod; empty if there is none."""
        name = pod["metadata"]["name"]
        words = (name, self.api.namespace)
        log = self.api.text(
            f"read the log of {name}", _CORE, "read_namespaced_pod_log", *words, container=CONTAINER, tail_lines=200
        )
        lines = [line.removeprefix(REPORT) for line in log.splitlines() if line.startswith(REPORT)]
        return lines[-1] if lines else ""

    def why_no_pods(self, job: Mapping[str, Any]) -> str:
        """Return why the pods of a Job cannot be created, such as a quota; empty if unknown."""
        picked = f"involvedObject.kind=Job,involvedObject.name={job['metadata']['name']},reason=FailedCreate"
        found = self.api.list("list events", _CORE, "list_namespaced_event", self.api.namespace, field_selector=picked)
        return str(found[0][-1].get("message", "")) if found and found[0] else ""


def _dropped(job: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the fields that an old server does not know, so that it ignores them without a word."""
    dropped = [name for name in ("completionMode", "suspend") if job.get(name, False) != wanted[name]]
    pods = [spec["template"]["spec"].get("schedulingGates") for spec in (job, wanted)]
    return dropped + ["schedulingGates"] * (not pods[0] and bool(pods[1]))


def _by_job(objects: Sequence[Object]) -> dict[str, list[Object]]:
    grouped: dict[str, list[Object]] = {}
    for each in sorted(objects, key=lambda found: found["metadata"].get("creationTimestamp", "")):
        grouped.setdefault((each["metadata"].get("labels") or {}).get(JOB_LABEL, ""), []).append(each)
    return grouped


def devices_of(spec: Mapping[str, Any], resource: str) -> int:
    """Return the devices of a pod by its spec."""
    return sum(int(c["resources"]["requests"][resource]) for c in spec["containers"] if c["name"] == CONTAINER)


def index_of(pod: Mapping[str, Any]) -> int:
    """Return the index of a pod in its Job."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, 0))


def seconds_of(time_text: str | None) -> float | None:
    """Return seconds of the epoch of a time of Kubernetes; None if there is none."""
    try:
        return datetime.fromisoformat((time_text or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def is_finished(job: Mapping[str, Any]) -> bool:
    """Return whether a Job has ended for good."""
    return condition(job, "Complete") is not None or condition(job, "Failed") is not None
