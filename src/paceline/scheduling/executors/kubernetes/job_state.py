"""State of a job on Kubernetes by its Job and pods."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paceline.scheduling.executors.kubernetes.cluster import seconds_of
from paceline.scheduling.executors.kubernetes.kueue import condition
from paceline.scheduling.executors.kubernetes.settings import GATE, HOST, START

_Pod = Mapping[str, Any]


def is_gated(pod: _Pod) -> bool:
    """Return whether a pod waits for the executor to choose its node."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or [])


def is_running(pod: _Pod) -> bool:
    """Return whether a pod runs and is not being deleted."""
    return pod.get("status", {}).get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def has_started(pod: _Pod) -> bool:
    """Return whether a pod has run, so that it may have a log."""
    return pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")


def host_of(pod: _Pod) -> str:
    """Return the host label of the node that was chosen for a pod; empty if none was."""
    return str((pod["spec"].get("nodeSelector") or {}).get(HOST, ""))


def finished(job: Mapping[str, Any], pods: Sequence[_Pod], told: bool) -> tuple[int, bool, float, str]:
    """Return how a Job ended: exit code, whether it may resume, seconds of the epoch, and the reason.

    A Job whose pod was evicted, preempted or lost with its node may resume.
    """
    complete, failed = condition(job, "Complete"), condition(job, "Failed") or {}
    at_s = seconds_of((complete or failed).get("lastTransitionTime")) or time.time()
    if complete is not None:
        return 0, told, at_s, ""
    lost = [pod for pod in pods if condition(pod, "DisruptionTarget") is not None]
    if lost or failed.get("reason") == "PodFailurePolicy":
        said = (condition(lost[0], "DisruptionTarget") or {}).get("message", "") if lost else failed.get("message", "")
        return 143, True, at_s, f"Kubernetes ended a pod of it: {said or 'disrupted'}"
    ends = [_end(pod) for pod in pods]
    first = min((end for end in ends if end is not None and end[1]), default=None)
    if first is None:
        return 1, told, at_s, f"Kubernetes ended it: {failed.get('message') or failed.get('reason') or 'failed'}"
    return first[1], told, at_s, f"pod {first[2]} ended with code {first[1]}{first[3]}"


def _end(pod: _Pod) -> tuple[str, int, str, str] | None:
    """Return time, exit code, name and reason of the end of a pod; None if it has not ended."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        end = (status.get("state") or {}).get("terminated")
        if end:
            why = end.get("reason", "Error")
            return (
                end.get("finishedAt", ""),
                int(end["exitCode"]),
                pod["metadata"]["name"],
                "" if why == "Error" else f" ({why})",
            )
    return None


def present(
    job: Mapping[str, Any], pods: Sequence[_Pod], queue: str
) -> tuple[Literal["running", "waiting"], float | None, str]:
    """Return the phase of a job that is to run, when it began, and why it waits.

    It runs if as many pods run as the size that they were started for.

    Args:
        queue: why Kueue has not admitted it.
    """
    running = [pod for pod in pods if is_running(pod)]
    for start in {(pod["metadata"].get("annotations") or {}).get(START, "") for pod in running}:
        same = [pod for pod in running if (pod["metadata"].get("annotations") or {}).get(START) == start]
        if start and len(same) == int(start.split()[0]):
            return "running", max((_began(pod) for pod in same), default=None), ""
    if job["spec"].get("suspend"):
        return "waiting", None, queue
    return "waiting", None, next((why for pod in pods if (why := _why(pod))), "")


def _began(pod: _Pod) -> float:
    for status in pod.get("status", {}).get("containerStatuses") or []:
        began = seconds_of(((status.get("state") or {}).get("running") or {}).get("startedAt"))
        if began is not None:
            return began
    return seconds_of(pod.get("status", {}).get("startTime")) or 0.0


def _why(pod: _Pod) -> str:
    """Return why a pod does not run; empty if unknown."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    for container in status.get("containerStatuses") or []:
        waits = (container.get("state") or {}).get("waiting") or {}
        if waits.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"pod {name}: {waits['reason']}{': ' + waits['message'] if waits.get('message') else ''}"
    scheduled = condition(pod, "PodScheduled", "False")
    if scheduled is not None and scheduled.get("reason") != "SchedulingGated":
        return f"pod {name}: {scheduled.get('message') or scheduled.get('reason')}"
    return ""
