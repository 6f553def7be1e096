"""Reader of Kueue: its workloads, and the settings of its queues (apis/kueue/v1beta1 and v1beta2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from paceline.errors import UserError
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.queues.kueue_objects import parse_kueue
from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.kubernetes import (
    Condition,
    PodDevices,
    Value,
    condition,
    devices_in,
    devices_of_pod,
    has_group,
    kinds_of,
    labelled_type,
    made_of,
    name_of,
    number,
    owner_of,
    path_of,
    slice_type,
    split_product,
    table,
)
from paceline.scheduling.traces.logs.log_times import parse_time
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob

GROUP = "kueue.x-k8s.io/"
COMMAND = "kubectl get workloads,localqueues,clusterqueues,cohorts,resourceflavors -A -o yaml"
"""Command whose output says all that is read of Kueue."""


def is_kueue(objects: Sequence[Any]) -> bool:
    """Return whether some object is one of Kueue."""
    return has_group(objects, GROUP)


def read_kueue(source: JobFile) -> JobLog:
    """Read the workloads of Kueue, and the settings of its queues where they are in the file."""
    kinds = kinds_of(source, GROUP)
    found = kinds.get("ResourceFlavor", ())
    flavors = {name_of(item): labelled_type(table(item, "spec", "nodeLabels")) for _, item in found}
    single = {name_of(item): only for _, item in kinds.get("ClusterQueue", ()) if (only := _only_slices(item, flavors))}
    local = {path_of(item): texts(item, "spec", "clusterQueue") for _, item in kinds.get("LocalQueue", ())}
    jobs, skipped = made_of(kinds, {"Workload": lambda item, place: [_workload(item, place, flavors, local, single)]})
    queues, wrong = made_of(kinds, {"ClusterQueue": lambda item, _: _checked(item)})
    others = [item for kind in ("Cohort", "LocalQueue", "ResourceFlavor") for _, item in kinds.get(kind, ())]
    settings = parse_kueue([*queues, *others], device_type) if queues else None
    return JobLog.of(jobs, (*skipped, *wrong), form="kueue", file=source.name, queues=settings)


def device_type(name: str) -> str:
    """Return the device of the catalogue that a label names, or the label as it is."""
    return device(name).name if is_device(name) else name


def _only_slices(item: Value, flavors: Mapping[str, str]) -> str:
    """Return the label of a cluster queue whose flavors with GPUs are all MIG slices of one profile; empty for others."""
    labels = [
        flavors.get(texts(flavor, "name"), "")
        for group in table(item, "spec").get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        if any(devices_in({texts(each, "name"): 1}).count for each in flavor.get("resources") or ())
    ]
    return labels[0] if len({split_product(label)[1] for label in labels}) == 1 and split_product(labels[0])[1] else ""


def _workload(
    item: Value, place: str, flavors: Mapping[str, str], local: Mapping[str, str], single: Mapping[str, str]
) -> LoggedJob:
    """Return the job of a workload.

    Args:
        single: label of MIG slices by cluster queue, where its GPUs are all such slices.
    """
    spec, status = table(item, "spec"), table(item, "status")
    space = texts(item, "metadata", "namespace")
    assigned = {texts(each, "name") or "main": each for each in table(status, "admission").get("podSetAssignments") or ()}
    total, types, pods, command = PodDevices(), [], 0, ""
    least = 0
    path = f"{space}/{texts(spec, 'queueName')}"
    of_queue = texts(status, "admission", "clusterQueue") or local.get(path, "")
    topology: Literal["", "node", "rack"] = ""
    for pod_set in spec.get("podSets") or ():
        own, named, words = devices_of_pod(table(pod_set, "template"))
        assignment = assigned.get(texts(pod_set, "name") or "main", {})
        count = int(number(texts(assignment, "count") or texts(pod_set, "count"), 1.0))
        total = PodDevices(total.count + count * own.count, own.share, own.profile) if own.count else total
        pods += count if own.count else 0
        least += own.count * int(number(texts(pod_set, "minCount"), count))
        command = command or words
        flavor = texts(assignment, "flavors", own.name) if own.name else ""
        if own.count:
            label = named or flavors.get(flavor, "") or flavor
            base, profile, share = split_product(label or single.get(of_queue, ""))
            if profile and not own.profile:  # GPUs that are slices
                total = replace(total, share=share, profile=profile)
                label = slice_type(device_type(base), profile)
            types.append(label)
        topology = topology or _topology(texts(pod_set, "topologyRequest", "required"))
    finished, admitted = condition(status, "Finished"), condition(status, "Admitted")
    reserved = condition(status, "QuotaReserved")
    end = finished.at if finished.holds else math.nan
    start = admitted.at if admitted.holds else math.nan
    state: JobState = "ended" if finished.holds else "running" if admitted.holds or reserved.holds else "waiting"
    checked = state == "running" and not admitted.holds  # its quota is in use, and its pods have yet to start
    inactive = texts(spec, "active") == "False"
    reason = "Deactivated" if inactive else reserved.message or reserved.reason
    queue = texts(spec, "queueName")
    named_types = tuple(dict.fromkeys(name for name in types if name))
    return LoggedJob(
        name=f"{space}/{name_of(item)}" if space else name_of(item),
        title=owner_of(item),
        state=state,
        status=_status(finished, admitted, reserved),
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        eligible_s=parse_time(texts(status, "requeueState", "requeueAt")) if state == "waiting" else math.nan,
        start_s=start,
        end_s=end,
        run_s=0.0 if checked else end - start,
        limit_s=number(texts(spec, "maximumExecutionTimeSeconds"), 0.0),
        devices=total.count,
        gang=least if state == "waiting" and least < total.count else 0,
        device_types=named_types if len(named_types) == 1 else (),
        share=total.share,
        profile=total.profile,
        nodes=pods,
        priority=number(texts(spec, "priority"), 0.0),
        topology=topology,
        user=_user(item) or space,
        account=of_queue,
        queue=queue,
        reason=reason if state == "waiting" else "",
        command=command,
        place=place,
    )


_USER_LABELS = ("user", "username", "owner", "created-by", "app.kubernetes.io/created-by", "hub.jupyter.org/username")
"""Labels and annotations by which clusters name the person. Kueue itself states none."""


def _user(item: Value) -> str:
    """Return the person whom labels or annotations of a workload or of its pods name; empty: none."""
    pods = [table(each, "template", "metadata") for each in table(item, "spec").get("podSets") or ()]
    for about in (table(item, "metadata"), *pods):
        stated = {**table(about, "annotations"), **table(about, "labels")}
        if name := next((str(stated[label]) for label in _USER_LABELS if stated.get(label)), ""):
            return name
    return ""


def _status(finished: Condition, admitted: Condition, reserved: Condition) -> str:
    if finished.holds:
        return finished.reason or "Finished"
    return "Admitted" if admitted.holds else "QuotaReserved" if reserved.holds else "Pending"


def _checked(item: Value) -> list[Value]:
    """Return a cluster queue that can be read as a list. Raises ValueError for a wrong quantity."""
    try:
        parse_kueue([item])
    except UserError as error:
        raise ValueError(error.message) from None
    return [item]


def _topology(level: str) -> Literal["", "node", "rack"]:
    """Return the domain of a required level of topology. Every level above the node counts as a rack."""
    return "" if not level else "node" if level == "kubernetes.io/hostname" else "rack"
