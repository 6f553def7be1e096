"""Readers of ``kubectl get ... -o yaml`` and ``-o json``: workloads and queues of Kueue, jobs and queues of Volcano.

Kueue: apis/kueue/v1beta1 and v1beta2 (Workload, ClusterQueue, LocalQueue, ResourceFlavor). Volcano: volcano-sh/apis,
batch/v1alpha1 (Job), scheduling/v1beta1 (PodGroup, Queue).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.gres import split_slice
from paceline.scheduling.traces.logs.log_times import parse_time
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob, QueueQuota, SkippedRow

Value = Mapping[str, Any]
KUEUE = "kueue.x-k8s.io/"
VOLCANO = "volcano.sh/"
COMMAND = "kubectl get workloads,localqueues,clusterqueues,resourceflavors -A -o yaml"
"""Command whose output says all that is read of Kueue."""
VOLCANO_COMMAND = "kubectl get vcjob,podgroups,queues -A -o yaml"
_DEVICES = frozenset(
    {"gpu", "tpu", "gaudi", "neuron", "neuroncore", "neurondevice", "npu", "dcu", "mlu", "gpu-number", "vgpu-number"}
)
"""Last parts of the names of resources that are devices: ``nvidia.com/gpu``, ``google.com/tpu``, ``huawei.com/npu``."""
_TYPE_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "cloud.google.com/gke-accelerator",
    "gpu.nvidia.com/model",
    "karpenter.k8s.aws/instance-gpu-name",
)
"""Labels of nodes that name the type of their devices."""
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def items(objects: Sequence[Any]) -> Iterator[Value]:
    """Yield the objects of documents that are objects or lists of them."""
    for each in objects:
        if isinstance(each, Mapping) and isinstance(each.get("items"), list):
            kind = str(each.get("kind", "")).removesuffix("List")
            version = each.get("apiVersion", "")
            yield from (_typed(item, kind, version) for item in each["items"] if isinstance(item, Mapping))
        elif isinstance(each, Mapping):
            yield each
        elif isinstance(each, list):
            yield from items(each)


def _typed(item: Value, kind: str, version: str) -> Value:
    """Return an item with the kind of its list, which items of a typed list leave out."""
    return item if "kind" in item or not kind else {**item, "kind": kind, "apiVersion": version}


def is_kueue(objects: Sequence[Any]) -> bool:
    """Return whether some object is one of Kueue."""
    return any(str(item.get("apiVersion", "")).startswith(KUEUE) for item in items(objects))


def is_volcano(objects: Sequence[Any]) -> bool:
    """Return whether some object is one of Volcano."""
    return any(VOLCANO in str(item.get("apiVersion", "")) for item in items(objects))


def _kinds(source: JobFile, group: str) -> dict[str, list[tuple[str, Value]]]:
    """Return the objects of an API group by kind, each with its place."""
    kinds: dict[str, list[tuple[str, Value]]] = {}
    for number, item in enumerate(items(source.objects or ()), start=1):
        if group in str(item.get("apiVersion", "")):
            kinds.setdefault(str(item.get("kind", "")), []).append((f"{source.name}, object {number}", item))
    return kinds


def read_kueue(source: JobFile) -> JobLog:
    """Read the workloads of Kueue, and the quotas of its queues where they are in the file."""
    kinds = _kinds(source, KUEUE)
    flavors = {_name(item): _labelled_type(_map(item, "spec", "nodeLabels")) for _, item in kinds.get("ResourceFlavor", ())}
    local = {_path(item): texts(item, "spec", "clusterQueue") for _, item in kinds.get("LocalQueue", ())}
    made = [
        _guarded(lambda item=item, place=place: _workload(item, place, flavors, local), item, place)  # type: ignore[misc]
        for place, item in kinds.get("Workload", ())
    ]
    quotas = [
        quota
        for place, item in kinds.get("ClusterQueue", ())
        for quota in _cluster_queue(item, flavors, [name for name, queue in local.items() if queue == _name(item)])
    ]
    return JobLog.of(made, form="kueue", file=source.name, quotas=tuple(quotas))


def read_volcano(source: JobFile) -> JobLog:
    """Read the jobs of Volcano, its pod groups that no job of the file owns, and the quotas of its queues."""
    kinds = _kinds(source, VOLCANO)
    owners = {texts(item, "metadata", "uid") for _, item in kinds.get("Job", ())} - {""}
    names = {_path(item) for _, item in kinds.get("Job", ())}
    makers = [(place, item, _volcano_job) for place, item in kinds.get("Job", ())]
    for place, item in kinds.get("PodGroup", ()):
        owned = _map(item, "metadata").get("ownerReferences")
        parents = [owner for owner in owned if isinstance(owner, Mapping)] if isinstance(owned, list) else []
        space = texts(item, "metadata", "namespace")
        if not any(texts(owner, "uid") in owners or f"{space}/{texts(owner, 'name')}" in names for owner in parents):
            makers.append((place, item, _pod_group))
    made = [
        _guarded(lambda item=item, place=place, make=make: make(item, place), item, place)  # type: ignore[misc]
        for place, item, make in makers
    ]
    quotas = []
    for _, item in kinds.get("Queue", ()):
        limits = _resources(_map(item, "spec", "capability"))
        owed = _resources(_map(item, "spec", "deserved"))
        weight = _float(texts(item, "spec", "weight"), 1.0)
        quotas.append(
            QueueQuota(
                name=_name(item),
                cohort=texts(item, "spec", "parent") or "root",
                devices=owed.count if owed.count else limits.count or math.inf,
                borrowing=limits.count - owed.count if limits.count and owed.count else math.inf,
                lending=math.inf if texts(item, "spec", "reclaimable") != "False" else 0.0,
                weight=weight,
            )
        )
    return JobLog.of(made, form="volcano", file=source.name, quotas=tuple(quotas))


def _guarded(make: Any, item: Value, place: str) -> LoggedJob | SkippedRow:
    """Return ``make()``, or a skipped row for an object of another shape than its kind has."""
    try:
        made: LoggedJob | SkippedRow = make()
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        return SkippedRow(place, _name(item), "had wrong values", str(error)[:80])
    return made


@dataclass(frozen=True, slots=True)
class _Resources:
    """Devices of a list of resources."""

    count: int = 0
    share: float = 1.0
    profile: str = ""
    name: str = ""


def _resources(resources: Value) -> _Resources:
    """Return the devices of a list of resources: ``nvidia.com/gpu: "8"``, ``nvidia.com/mig-1g.5gb: 2``."""
    for name, value in resources.items():
        last = str(name).rpartition("/")[2]
        kind = last.removeprefix("requests.").casefold()
        count = int(_float(str(value), 0.0))
        if count and (kind in _DEVICES or kind.endswith(".gpu")):
            return _Resources(count, name=str(name))
        if count and kind.startswith("mig-"):
            _, profile, share = split_slice(kind.removeprefix("mig-"))
            return _Resources(count, share, profile, str(name))
    return _Resources()


def _pods(template: Value) -> tuple[_Resources, str, str]:
    """Return the devices of a pod, the type that its node selector names, and its command."""
    spec = _map(template, "spec")
    containers = [each for each in spec.get("containers") or () if isinstance(each, Mapping)]
    found, command = _Resources(), ""
    total = 0
    for container in containers:
        limits = {**_map(container, "resources", "limits"), **_map(container, "resources", "requests")}
        each = _resources(limits)
        total += each.count
        found = each if each.count else found
        words = [str(word) for key in ("command", "args") for word in container.get(key) or ()]
        command = command or " ".join(words)
    found = _Resources(total, found.share, found.profile, found.name)
    return found, _labelled_type(_map(spec, "nodeSelector")) or _affine_type(spec), command


def _affine_type(spec: Value) -> str:
    """Return the type that the required affinity to nodes names; empty if it names none or several."""
    required = _map(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    values = [
        value
        for term in required.get("nodeSelectorTerms") or ()
        for rule in term.get("matchExpressions") or ()
        if rule.get("key") in _TYPE_LABELS and rule.get("operator") == "In"
        for value in rule.get("values") or ()
    ]
    return str(values[0]) if len(values) == 1 else ""


def _workload(item: Value, place: str, flavors: Mapping[str, str], local: Mapping[str, str]) -> LoggedJob | SkippedRow:
    spec, status = _map(item, "spec"), _map(item, "status")
    space = texts(item, "metadata", "namespace")
    assigned = {texts(each, "name") or "main": each for each in _map(status, "admission").get("podSetAssignments") or ()}
    total, types, pods, command = _Resources(), [], 0, ""
    topology: Literal["", "node", "rack"] = ""
    for pod_set in spec.get("podSets") or ():
        own, named, words = _pods(_map(pod_set, "template"))
        assignment = assigned.get(texts(pod_set, "name") or "main", {})
        count = int(_float(texts(assignment, "count") or texts(pod_set, "count"), 1.0))
        total = _Resources(total.count + count * own.count, own.share, own.profile) if own.count else total
        pods += count if own.count else 0
        command = command or words
        flavor = texts(assignment, "flavors", own.name) if own.name else ""
        if own.count:
            types.append(named or flavors.get(flavor, "") or flavor)
        topology = topology or _topology(texts(pod_set, "topologyRequest", "required"))
    finished, admitted = _condition(status, "Finished"), _condition(status, "Admitted")
    reserved = _condition(status, "QuotaReserved")
    start, end = admitted.at if admitted.holds else math.nan, finished.at if finished.holds else math.nan
    state: JobState = "ended" if finished.holds else "running" if admitted.holds else "waiting"
    inactive = texts(spec, "active") == "False"
    reason = "Deactivated" if inactive else reserved.message or reserved.reason
    queue = texts(spec, "queueName")
    named_types = tuple(dict.fromkeys(name for name in types if name))
    return LoggedJob(
        name=f"{space}/{_name(item)}" if space else _name(item),
        title=_owner(item),
        state=state,
        status=_status(finished, admitted, reserved),
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        start_s=start,
        end_s=end,
        run_s=end - start,
        limit_s=_float(texts(spec, "maximumExecutionTimeSeconds"), 0.0),
        devices=total.count,
        device_types=named_types if len(named_types) == 1 else (),
        share=total.share,
        profile=total.profile,
        nodes=pods,
        priority=_float(texts(spec, "priority"), 0.0),
        topology=topology,
        user=space,
        account=texts(status, "admission", "clusterQueue") or local.get(f"{space}/{queue}", ""),
        queue=queue,
        reason=reason if state == "waiting" else "",
        command=command,
        place=place,
    )


@dataclass(frozen=True, slots=True)
class _Condition:
    """Condition of an object: whether it holds, since when, and why."""

    holds: bool = False
    at: float = math.nan
    reason: str = ""
    message: str = ""


def _condition(status: Value, kind: str) -> _Condition:
    for each in status.get("conditions") or ():
        if isinstance(each, Mapping) and each.get("type") == kind:
            at = parse_time(texts(each, "lastTransitionTime") or texts(each, "transitionTime"))
            return _Condition(texts(each, "status") == "True", at, texts(each, "reason"), texts(each, "message"))
    return _Condition()


def _status(finished: _Condition, admitted: _Condition, reserved: _Condition) -> str:
    if finished.holds:
        return finished.reason or "Finished"
    return "Admitted" if admitted.holds else "QuotaReserved" if reserved.holds else "Pending"


def _cluster_queue(item: Value, flavors: Mapping[str, str], local: Sequence[str]) -> Iterator[QueueQuota]:
    """Yield the quotas of devices of a cluster queue, one for each flavor."""
    spec = _map(item, "spec")
    weight = _float(texts(spec, "fairSharing", "weight"), 1.0)
    for group in spec.get("resourceGroups") or ():
        for flavor in group.get("flavors") or ():
            for resource in flavor.get("resources") or ():
                found = _resources({texts(resource, "name"): 1})
                if found.count:
                    name = texts(flavor, "name")
                    yield QueueQuota(
                        name=_name(item),
                        cohort=texts(spec, "cohortName") or texts(spec, "cohort"),
                        device_type=flavors.get(name, "") or name,
                        devices=_float(texts(resource, "nominalQuota"), 0.0),
                        borrowing=_float(texts(resource, "borrowingLimit"), math.inf),
                        lending=_float(texts(resource, "lendingLimit"), math.inf),
                        weight=weight,
                        local=tuple(local),
                    )


_ENDED = frozenset({"Completed", "Failed", "Terminated", "Aborted"})
_STARTED = frozenset({"Running", "Completing", "Restarting", "Aborting", "Terminating"})


def _volcano_job(item: Value, place: str) -> LoggedJob | SkippedRow:
    spec, status = _map(item, "spec"), _map(item, "status")
    total, types, command = _Resources(), [], ""
    pods = 0
    for task in spec.get("tasks") or ():
        own, named, words = _pods(_map(task, "template"))
        replicas = int(_float(texts(task, "replicas"), 1.0))
        total = _Resources(total.count + replicas * own.count, own.share, own.profile) if own.count else total
        pods += replicas if own.count else 0
        types += [named] if named else []
        command = command or words
    phase = texts(status, "state", "phase") or "Pending"
    changed = parse_time(texts(status, "state", "lastTransitionTime"))
    moments = {
        texts(each, "status"): parse_time(texts(each, "lastTransitionTime"))
        for each in status.get("conditions") or ()
        if isinstance(each, Mapping)
    }
    start = moments.get("Running", changed if phase in _STARTED else math.nan)
    end = moments.get(phase, changed) if phase in _ENDED else math.nan
    run = _go_duration(texts(status, "runningDuration"))
    if math.isnan(start) and phase in _ENDED:
        start = end - run
    state: JobState = "ended" if phase in _ENDED else "running" if phase in _STARTED else "waiting"
    hard = texts(spec, "networkTopology", "mode") == "hard"
    return LoggedJob(
        name=_path(item),
        title=_name(item),
        state=state,
        status=phase,
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        start_s=start,
        end_s=end,
        run_s=end - start,
        limit_s=_go_duration(texts(spec, "runningEstimate")) if texts(spec, "runningEstimate") else 0.0,
        devices=total.count,
        device_types=tuple(dict.fromkeys(types)) if len(set(types)) == 1 else (),
        share=total.share,
        profile=total.profile,
        nodes=pods,
        topology="rack" if hard else "",
        user=texts(item, "metadata", "namespace"),
        queue=texts(spec, "queue") or "default",
        qos=texts(spec, "priorityClassName"),
        reason=(texts(status, "state", "message") or texts(status, "state", "reason")) if state == "waiting" else "",
        command=command,
        place=place,
    )


def _pod_group(item: Value, place: str) -> LoggedJob | SkippedRow:
    spec, status = _map(item, "spec"), _map(item, "status")
    found = _resources(_map(spec, "minResources"))
    phase = texts(status, "phase") or "Pending"
    scheduled, refused = _condition(status, "Scheduled"), _condition(status, "Unschedulable")
    state: JobState = "ended" if phase == "Completed" else "running" if phase == "Running" else "waiting"
    return LoggedJob(
        name=_path(item),
        title=_owner(item) or _name(item),
        state=state,
        status=phase,
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        start_s=scheduled.at if scheduled.holds and state != "waiting" else math.nan,
        devices=found.count,
        share=found.share,
        profile=found.profile,
        nodes=int(_float(texts(spec, "minMember"), 0.0)) if found.count else 0,
        user=texts(item, "metadata", "namespace"),
        queue=texts(spec, "queue") or "default",
        qos=texts(spec, "priorityClassName"),
        reason=(refused.message or refused.reason) if state == "waiting" else "",
        place=place,
    )


def _topology(level: str) -> Literal["", "node", "rack"]:
    """Return the domain of a required level of topology. Every level above the node counts as a rack."""
    return "" if not level else "node" if level == "kubernetes.io/hostname" else "rack"


def _go_duration(text: str) -> float:
    """Return the seconds of a duration such as ``1h30m5s``; NaN for another text."""
    found = _SECONDS.findall(text)
    return sum(float(value) * _UNITS[unit] for value, unit in found) if found else math.nan


def _labelled_type(labels: Value) -> str:
    """Return the type of device that labels of nodes name; empty if they name none."""
    return next((str(labels[label]) for label in _TYPE_LABELS if labels.get(label)), "")


def _map(value: Value, *keys: str) -> Value:
    """Return the table at nested keys; empty if it is missing."""
    for key in keys:
        inner = value.get(key)
        if not isinstance(inner, Mapping):
            return {}
        value = inner
    return value


def _name(item: Value) -> str:
    return texts(item, "metadata", "name")


def _path(item: Value) -> str:
    space = texts(item, "metadata", "namespace")
    return f"{space}/{_name(item)}" if space else _name(item)


def _owner(item: Value) -> str:
    """Return the name of the object that owns an item."""
    owners = _map(item, "metadata").get("ownerReferences")
    return (
        next((texts(owner, "name") for owner in owners if isinstance(owner, Mapping)), "") if isinstance(owners, list) else ""
    )


def _float(text: str, missing: float) -> float:
    """Return a number, or ``missing`` for an empty text. ``8k`` is 8,000. Raises ValueError for another text."""
    return missing if not text else float(text[:-1]) * 1000 if text.endswith("k") else float(text)
