"""Phases by Job and pods."""

from __future__ import annotations

from typing import Any

from paceline.scheduling.executors.kubernetes.job_state import finished, present

AT = "2026-01-02T03:04:05Z"


def pod(phase: str = "Pending", start: str = "2 1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "annotations": {"paceline/start": start}},
        "spec": {},
        "status": {"phase": phase, **status},
    }


def state(kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"state": {kind: fields}}]


def ended(kind: str, reason: str = "", message: str = "") -> dict[str, Any]:
    return {
        "status": {
            "conditions": [{"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": AT}]
        }
    }


def test_a_job_runs_if_all_pods_of_one_start_do() -> None:
    job: dict[str, Any] = {"spec": {"suspend": False}}
    runs = pod("Running", containerStatuses=state("running", startedAt=AT))
    assert present(job, [runs, runs], "") == ("running", 1767323045.0, "")
    grows = [runs, runs, pod("Running", "4 2"), pod("Pending", "4 2")]
    assert present(job, grows, "")[0] == "running"  # the first two run on until the others are there
    assert present(job, [runs, pod("Pending")], "")[0] == "waiting"
    pulls = pod(containerStatuses=state("waiting", reason="ImagePullBackOff", message="no such image"))
    assert present(job, [runs, pulls], "")[2] == "pod p: ImagePullBackOff: no such image"
    full = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes are available"}]
    assert present(job, [pod(conditions=full)], "")[2] == "pod p: 0/4 nodes are available"
    assert present({"spec": {"suspend": True}}, [], "no quota") == ("waiting", None, "no quota")


def test_how_a_job_ended() -> None:
    assert finished(ended("Complete"), [], False) == (0, False, 1767323045.0, "")
    killed = pod("Failed", containerStatuses=state("terminated", exitCode=137, reason="OOMKilled", finishedAt=AT))
    late = pod("Failed", containerStatuses=state("terminated", exitCode=1, reason="Error", finishedAt="2026-01-02T03:04:09Z"))
    assert finished(ended("Failed"), [late, killed], False)[::3] == (137, "pod p ended with code 137 (OOMKilled)")
    assert finished(ended("Failed", "DeadlineExceeded", "too long"), [], True) == (
        1,
        True,
        1767323045.0,
        "Kubernetes ended it: too long",
    )
    code, may_resume, _, why = finished(
        ended("Failed", "PodFailurePolicy", "Pod default/p has condition DisruptionTarget"), [], False
    )
    assert (code, may_resume) == (143, True) and "DisruptionTarget" in why
