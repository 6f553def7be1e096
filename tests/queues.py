"""Small live queues for tests."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import JobLog, LoggedJob

NOW = 1_000_000.0


def nodes(devices: int, count: int = 1, kind: str = "A100 SXM 80GB", **more: object) -> QueueNodes:
    """Nodes of equal size."""
    names = tuple(f"n{at}" for at in range(count))
    return QueueNodes(np.full(count, devices), (kind,) * count, names, **more)  # type: ignore[arg-type]


def runs(name: str, devices: int, ran_s: float, limit_s: float = 0.0, **more: object) -> LoggedJob:
    """A job that has run for a while."""
    start = NOW - ran_s
    given = {"submit_s": start, "start_s": start, "run_s": ran_s, "devices": devices, "limit_s": limit_s, **more}
    return LoggedJob(name=name, state="running", **given)  # type: ignore[arg-type]


def waits(name: str, devices: int, limit_s: float = 0.0, since_s: float = 60.0, **more: object) -> LoggedJob:
    """A job that waits."""
    given = {"submit_s": NOW - since_s, "devices": devices, "limit_s": limit_s, **more}
    return LoggedJob(name=name, state="waiting", **given)  # type: ignore[arg-type]


def ended(name: str, devices: int, run_s: float, ago_s: float = 7200.0, **more: object) -> LoggedJob:
    """A job that ended."""
    end = NOW - ago_s
    given = {"submit_s": end - run_s, "start_s": end - run_s, "end_s": end, "run_s": run_s, "devices": devices, **more}
    return LoggedJob(name=name, state="ended", **given)  # type: ignore[arg-type]


def queue(*jobs: LoggedJob, on: QueueNodes | None = None, form: str = "squeue", **more: object) -> WaitingQueue:
    """A queue of jobs on eight devices of one node."""
    log = JobLog(jobs=jobs, form=form, file="squeue.txt", moment_s=NOW, **more)  # type: ignore[arg-type]
    return WaitingQueue.of(log, on or nodes(8))
