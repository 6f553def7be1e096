"""Reader of Volcano: its jobs, pod groups and queues (volcano-sh/apis, batch/v1alpha1 and scheduling/v1beta1)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.traces.content import JobFile, texts
from paceline.scheduling.traces.logs.kubernetes import (
    PodDevices,
    Value,
    condition,
    devices_in,
    devices_of_pod,
    has_group,
    kinds_of,
    made_of,
    name_of,
    number,
    owner_of,
    path_of,
    table,
)
from paceline.scheduling.traces.logs.log_times import parse_time
from paceline.scheduling.traces.record import JobLog, JobState, LoggedJob

GROUP = "volcano.sh/"
COMMAND = "kubectl get vcjob,podgroups,queues -A -o yaml"
"""Command whose output says all that is read of Volcano."""
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def is_volcano(objects: Sequence[Any]) -> bool:
    """Return whether some object is one of Volcano."""
    return has_group(objects, GROUP)


def read_volcano(source: JobFile) -> JobLog:
    """Read the jobs of Volcano, its pod groups that no job of the file owns, and the settings of its queues."""
    kinds = kinds_of(source, GROUP)
    every = [item for _, item in kinds.get("Job", ())]
    owners = {texts(item, "metadata", "uid") for item in every} - {""}
    names = {path_of(item) for item in every}

    def pod_group(item: Value, place: str) -> list[LoggedJob]:
        return [] if _is_owned(item, owners, names) else [_pod_group(item, place)]

    makers = {"Job": lambda item, place: [_volcano_job(item, place)], "PodGroup": pod_group}
    jobs, skipped = made_of(kinds, makers)
    queues, wrong = made_of(kinds, {"Queue": lambda item, _: [(name_of(item), _queue(item))]})
    settings = KueueSettings(queues=dict(queues), fair_sharing=True) if queues else None
    return JobLog.of(jobs, (*skipped, *wrong), form="volcano", file=source.name, queues=settings)


def _is_owned(item: Value, owners: set[str], names: set[str]) -> bool:
    """Return whether a job of the file owns a pod group."""
    owned = table(item, "metadata").get("ownerReferences")
    parents = [owner for owner in owned if isinstance(owner, Mapping)] if isinstance(owned, list) else []
    space = texts(item, "metadata", "namespace")
    return any(texts(owner, "uid") in owners or f"{space}/{texts(owner, 'name')}" in names for owner in parents)


def _queue(item: Value) -> ClusterQueue:
    """Return a queue of Volcano as one of a cohort: it owns what it deserves, and borrows up to its capability.

    Devices that are owed to no queue belong to the cohort. Without a capability a queue may use all.
    """
    most = devices_in(table(item, "spec", "capability"))
    owed = devices_in(table(item, "spec", "deserved")).count
    bound = max(most.count - owed, 0) if most.count else None
    lends = None if texts(item, "spec", "reclaimable") != "False" else 0
    return ClusterQueue(
        quotas={ANY_DEVICE: Quota(nominal=owed, borrowing_limit=bound, lending_limit=lends)},
        cohort=COHORT,
        weight=number(texts(item, "spec", "weight"), 1.0),
        stopped=texts(item, "status", "state") in ("Closed", "Closing"),
    )


ANY_DEVICE, COHORT = "devices", "root"
"""Flavor that stands for every device of a Volcano cluster, and the cohort of its queues."""
_ENDED = frozenset({"Completed", "Failed", "Terminated", "Aborted"})
_STARTED = frozenset({"Running", "Completing", "Restarting", "Aborting", "Terminating"})


def _volcano_job(item: Value, place: str) -> LoggedJob:
    spec, status = table(item, "spec"), table(item, "status")
    total, types, command = PodDevices(), [], ""
    pods, gang = 0, 0
    needed = int(number(texts(spec, "minAvailable"), 0.0))
    for task in spec.get("tasks") or ():
        own, named, words = devices_of_pod(table(task, "template"))
        replicas = int(number(texts(task, "replicas"), 1.0))
        first = min(replicas, needed)
        gang, needed = gang + first * own.count, needed - first
        total = PodDevices(total.count + replicas * own.count, own.share, own.profile) if own.count else total
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
        name=path_of(item),
        title=name_of(item),
        state=state,
        status=phase,
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        start_s=start,
        end_s=end,
        run_s=end - start,
        limit_s=_go_duration(texts(spec, "runningEstimate")) if texts(spec, "runningEstimate") else 0.0,
        devices=total.count,
        gang=gang if gang < total.count else 0,
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


def _pod_group(item: Value, place: str) -> LoggedJob:
    spec, status = table(item, "spec"), table(item, "status")
    found = devices_in(table(spec, "minResources"))
    phase = texts(status, "phase") or "Pending"
    scheduled, refused = condition(status, "Scheduled"), condition(status, "Unschedulable")
    state: JobState = "ended" if phase == "Completed" else "running" if phase == "Running" else "waiting"
    return LoggedJob(
        name=path_of(item),
        title=owner_of(item) or name_of(item),
        state=state,
        status=phase,
        submit_s=parse_time(texts(item, "metadata", "creationTimestamp")),
        start_s=scheduled.at if scheduled.holds and state != "waiting" else math.nan,
        devices=found.count,
        share=found.share,
        profile=found.profile,
        nodes=int(number(texts(spec, "minMember"), 0.0)) if found.count else 0,
        user=texts(item, "metadata", "namespace"),
        queue=texts(spec, "queue") or "default",
        qos=texts(spec, "priorityClassName"),
        reason=(refused.message or refused.reason) if state == "waiting" else "",
        place=place,
    )


def _go_duration(text: str) -> float:
    """Return the seconds of a duration such as ``1h30m5s``; NaN for another text."""
    found = _SECONDS.findall(text)
    return sum(float(value) * _UNITS[unit] for value, unit in found) if found else math.nan
