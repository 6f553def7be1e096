"""Job as a cluster's own log or queue states it, before it becomes a ``Job`` of a simulation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paceline.scheduling.queues.kueue_settings import KueueSettings

JobState = Literal["waiting", "running", "ended"]
MOST_TASKS = 100_000
"""Most tasks of one array job that a queue may hold. Slurm's own limit, ``MaxArraySize``, is at most 4,000,001."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedJob:
    """Job in a cluster's log or queue.

    Times are seconds on the clock of the log. NaN: the log does not state it.

    Attributes:
        name: id of the job in the log. ``title``: name that its owner gave it.
        state: waiting, running or ended. ``status``: the log's own word, such as ``COMPLETED``.
        submit_s: submission. ``eligible_s``: time from which it may start, if later.
        start_s: start. ``end_s``: end.
        planned_start_s: start that the cluster's own scheduler expects for a waiting job.
        run_s: time that it ran, or has run so far.
        limit_s: stated limit of its run time; 0: none.
        devices: devices that it holds or asks for; 0: none, or not stated.
        device_types: names of the types it may use, as the log writes them; empty: not stated.
        share: fraction of each device, of a MIG slice or a shared GPU. ``profile``: MIG profile, such as ``1g.5gb``.
        nodes: nodes; 0: not stated. ``node_names``: those on which it runs; empty: not stated.
        node_devices: devices that each of its nodes must have for it; 0: not stated.
        pods: pods with equal numbers of devices, each on one node; 0: not stated.
        resources: processors (``cpu``), bytes of memory (``mem``) and nodes (``node``); missing: not stated.
        priority: higher first.
        preemptible: False if it may not be stopped for another job.
        topology: required placement: ``node``, ``rack`` or empty.
        user, account, queue, qos: accounts that it counts to. ``queue`` is Slurm's partition or Kueue's local queue.
        reason: why it waits, in the log's words.
        command: command line, if stated.
        array: id of its array job. ``tasks``: numbers of the waiting tasks of an array that one row stands for.
        throttle: most tasks of its array that run at once; 0: no bound.
        after: names of jobs or arrays that it waits for, each with ``start`` or ``end``, or ``singleton`` and no name.
        gang: devices with which it may start, if those are fewer (Volcano's ``minAvailable``, Kueue's ``minCount``); 0: all.
        place: file and row.
        notes: kinds of remarks, which are counted in the answer.
    """

    name: str
    title: str = ""
    state: JobState
    status: str = ""
    submit_s: float = math.nan
    eligible_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    planned_start_s: float = math.nan
    run_s: float = math.nan
    limit_s: float = 0.0
    devices: int = 0
    device_types: tuple[str, ...] = ()
    share: float = 1.0
    profile: str = ""
    nodes: int = 0
    pods: int = 0
    node_names: tuple[str, ...] = ()
    node_devices: int = 0
    resources: tuple[tuple[str, float], ...] = ()
    priority: float = 0.0
    preemptible: bool = True
    topology: Literal["", "node", "rack"] = ""
    user: str = ""
    account: str = ""
    queue: str = ""
    qos: str = ""
    reason: str = ""
    command: str = ""
    array: str = ""
    tasks: tuple[int, ...] = ()
    throttle: int = 0
    after: tuple[tuple[str, str], ...] = ()
    gang: int = 0
    place: str = ""
    notes: tuple[str, ...] = ()

    @property
    def arrival_s(self) -> float:
        """Time from which the scheduler may start it; NaN if the log states no submission."""
        return self.eligible_s if self.eligible_s > self.submit_s else self.submit_s

    @property
    def wait_s(self) -> float:
        """Time from its arrival to its start; NaN if it never started or the log lacks one of them."""
        return self.start_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class SkippedRow:
    """Row of a file that became no job.

    Attributes:
        place: file and row. ``name``: id of the job, if it could be read.
        reason: what is wrong, as the predicate of "they": ``never started``, ``held no GPU``.
        detail: what exactly is wrong with this row; empty if the reason says it.
    """

    place: str
    name: str
    reason: str
    detail: str = ""


_OF_ONE = {"ask": "asks", "name": "names", "run": "runs", "were": "was", "are": "is", "have": "has"}
"""First words of reasons, for one job."""


def singular(reason: str) -> str:
    """Return the reason of a skipped row as the predicate of one job: ``asks for ...``, ``never started``."""
    first, _, rest = reason.partition(" ")
    text = f"{_OF_ONE.get(first, first)} {rest}".rstrip()
    return text.replace(" that they ask", " that it asks").replace(" that they ", " that it ").replace(" their ", " its ")


@dataclass(frozen=True, kw_only=True)
class JobLog:
    """Jobs of a log or a queue, in the order of the file.

    Attributes:
        form: name of the form, such as ``sacct``. ``file``: name of the file.
        skipped: rows that became no job.
        notes: sentences on how the file was read.
        queues: quotas and rules of the queues, if the file states them; None: it does not.
        moment_s: time at which a queue was printed, on the clock of its jobs; NaN: unknown.
        clock: ``utc`` if times are seconds since 1970 in UTC; ``local`` if they are wall clock times of an unknown time zone,
            counted as if they were UTC; ``own`` if they count from a start of the log's own.
        nodes_as_devices: True if nothing in the file names GPUs, so that ``devices`` are nodes.
    """

    jobs: tuple[LoggedJob, ...]
    form: str = ""
    file: str = ""
    skipped: tuple[SkippedRow, ...] = ()
    notes: tuple[str, ...] = ()
    queues: KueueSettings | None = None
    moment_s: float = math.nan
    clock: Literal["utc", "local", "own"] = "utc"
    nodes_as_devices: bool = False

    @classmethod
    def of(cls, made: Iterable[LoggedJob | SkippedRow], skipped: Iterable[SkippedRow] = (), **about: Any) -> JobLog:
        """Return the log of rows that became jobs or were skipped. ``skipped``: more skipped rows. ``about``: other fields."""
        every = list(made)
        jobs = tuple(row for row in every if isinstance(row, LoggedJob))
        return cls(jobs=jobs, skipped=(*skipped, *(row for row in every if isinstance(row, SkippedRow))), **about)

    def in_state(self, state: JobState) -> tuple[LoggedJob, ...]:
        """Return the jobs in a state, in the order of the file."""
        return tuple(job for job in self.jobs if job.state == state)


def expanded(jobs: Iterable[LoggedJob]) -> list[LoggedJob]:
    """Return the jobs with one entry for each waiting task of an array: ``103_2``, ``103_3`` ... for ``103_[2-9%2]``."""
    every: list[LoggedJob] = []
    for job in jobs:
        if job.tasks:
            array = job.array or job.name
            every += [replace(job, name=f"{array}_{task}", array=array, tasks=()) for task in job.tasks[:MOST_TASKS]]
        else:
            every.append(job)
    return every


def numbered(jobs: Sequence[LoggedJob]) -> list[LoggedJob]:
    """Return the jobs with unique names. The second run of a job ``7`` is ``7, run 2``."""
    seen: dict[str, int] = {}
    every = []
    for job in jobs:
        seen[job.name] = seen.get(job.name, 0) + 1
        again = seen[job.name] > 1
        every.append(replace(job, name=f"{job.name}, run {seen[job.name]}") if again else job)
    return every
