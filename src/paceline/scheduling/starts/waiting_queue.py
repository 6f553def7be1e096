"""Live queue of a cluster: its nodes, the jobs that run, that wait, and that ended before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from paceline.array_types import Ints
from paceline.errors import UserError, unknown
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.starts.reason_codes import reason_of
from paceline.scheduling.traces.record import JobLog, LoggedJob, QueueQuota, SkippedRow
from paceline.units import format_seconds

Scheduler = Literal["slurm", "kueue", "ray"]
KUEUE_LEFT_OUT = (
    "Strict FIFO, borrowing limits, preemption and stopped queues of Kueue are not simulated here, nor its quotas beside "
    "--cluster or --nodes: such jobs may start earlier or later. schedule --policy kueue --queues simulates them."
)
"""Remark on rules that only the policy ``kueue`` has."""


@dataclass(frozen=True)
class QueueNodes:
    """Nodes of a live cluster.

    Attributes:
        devices: devices of each node. ``types``: device type of each node. ``names``: its name; empty: unknown.
        of_queue: numbers of the nodes of each queue, such as Slurm's partitions. Another queue may use all nodes.
        notes: sentences on nodes that were left out.
    """

    devices: Ints
    types: tuple[str, ...]
    names: tuple[str, ...] = ()
    of_queue: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, fleet: Fleet) -> QueueNodes:
        """Return the nodes of a fleet."""
        types = tuple(fleet.types[group] for group in fleet.node_types.tolist())
        return cls(fleet.node_devices.copy(), types, fleet.names)

    def by_node(self) -> QueueNodes:
        """Return the nodes as one device each, for jobs that name no devices."""
        notes = (*self.notes, "No job of the queue names a GPU: nodes count as devices.")
        return replace(self, devices=np.ones_like(self.devices), types=("node",) * len(self.types), notes=notes)

    @property
    def total(self) -> int:
        """Devices of all nodes."""
        return int(self.devices.sum())

    def joined(self) -> QueueNodes:
        """Return one node for all devices of one type that the same queues may use."""
        members = {name: frozenset(chosen) for name, chosen in self.of_queue.items()}
        queues = [tuple(name for name, chosen in members.items() if node in chosen) for node in range(len(self.types))]
        kinds = list(zip(self.types, queues, strict=True))
        groups = list(dict.fromkeys(kinds))
        number = np.array([groups.index(kind) for kind in kinds], np.int64)
        devices = np.bincount(number, self.devices, len(groups)).astype(np.int64)
        of_queue = {name: tuple(at for at, group in enumerate(groups) if name in group[1]) for name in self.of_queue}
        return replace(self, devices=devices, types=tuple(kind for kind, _ in groups), names=(), of_queue=of_queue)

    def pool(self, job: LoggedJob) -> tuple[int, ...]:
        """Return the numbers of the nodes that a job may use."""
        every = [node for name in job.queue.split(",") for node in self.of_queue.get(name, ())]
        nodes = sorted(set(every)) if every else range(len(self.devices))
        return tuple(node for node in nodes if not job.device_types or _is_type(self.types[node], job.device_types))


def _is_type(device: str, wanted: Sequence[str]) -> bool:
    """Return whether a device is of a wanted type: Slurm writes ``a100`` for ``A100 SXM 80GB``."""
    plain = device.casefold().replace(" ", "").replace("-", "").replace("_", "")
    for name in wanted:
        other = name.casefold().replace(" ", "").replace("-", "").replace("_", "")
        if not device or other in plain or plain in other:
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class WaitingQueue:
    """Queue at one moment. Times are seconds on one clock.

    Attributes:
        now_s: the moment.
        scheduler: scheduler whose rules are simulated.
        running: jobs that hold devices. ``waiting``: jobs that wait, the next one first. ``held``: waiting jobs whose start is
            not up to the scheduler.
        history: jobs that ended.
        quotas: quotas of Kueue's cluster queues; empty: none.
        skipped: rows and waiting jobs that are left out, with the reason.
        remarks: sentences that the plain answer must say. ``notes``: sentences on assumptions.
    """

    now_s: float
    scheduler: Scheduler
    nodes: QueueNodes
    running: tuple[LoggedJob, ...]
    waiting: tuple[LoggedJob, ...]
    held: tuple[LoggedJob, ...] = ()
    history: tuple[LoggedJob, ...] = ()
    quotas: tuple[QueueQuota, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, log: JobLog, nodes: QueueNodes, history: JobLog | None = None, scheduler: Scheduler | None = None
    ) -> WaitingQueue:
        """Build the queue from a log of its jobs.

        Args:
            history: log of jobs that ended before, on the same clock.
            scheduler: scheduler whose rules are simulated; None: that which wrote the log.

        Raises:
            UserError: no job runs or waits.
        """
        running, waiting = log.in_state("running"), log.in_state("waiting")
        rules = scheduler or _scheduler(log.form)
        if rules == "kueue":
            running, waiting = in_cluster_queues(running), in_cluster_queues(waiting)
        if not running and not waiting:
            raise UserError(
                f"{log.file}: no job runs or waits", "give what squeue, kubectl get workloads or ray list jobs printed"
            )
        now_s = log.moment_s
        known = {job.name for job in (*running, *waiting)}
        ended = [job for job in log.in_state("ended") if job.run_s > 0]
        if history is not None:
            ended += [job for job in history.in_state("ended") if job.run_s > 0 and job.name not in known]
        waiting = tuple(_begun(job, now_s) for job in waiting)
        held = set_apart(waiting, running, rules)
        usable, skipped = [], list(log.skipped)
        for job in waiting:
            if job in held:
                continue
            if why := _unusable(job, nodes):
                skipped.append(SkippedRow(job.place, job.name, *why))
            else:
                usable.append(job)
        ending = [job for job in running if job.status == "COMPLETING"]
        notes = [*log.notes, *nodes.notes]
        if ending:
            notes.append(f"Running jobs that are completing: {len(ending):,}. Their devices count as free.")
        return cls(
            now_s=now_s,
            scheduler=rules,
            nodes=nodes,
            running=tuple(job for job in running if job.devices > 0 and not _is_part(job) and job not in ending),
            waiting=tuple(sorted(usable, key=_order)),
            held=tuple(held),
            history=tuple(ended),
            quotas=log.quotas,
            skipped=tuple(skipped),
            remarks=(*_over_limit(running, log.file), *([KUEUE_LEFT_OUT] if rules == "kueue" else [])),
            notes=tuple(notes),
        )

    def job(self, name: str) -> LoggedJob:
        """Return a waiting job by its name or title. Raises UserError with the nearest names."""
        for job in self.waiting:
            if name in (job.name, job.title):
                return job
        if any(name in (job.name, job.title) for job in self.running):
            raise UserError(f"job {name} runs already", "name one that waits")
        raise unknown("waiting job", name, [job.name for job in self.waiting])

    def adding(self, job: LoggedJob) -> WaitingQueue:
        """Return the queue with one more waiting job."""
        return replace(self, waiting=tuple(sorted((*self.waiting, job), key=_order)))


def _order(job: LoggedJob) -> tuple[float, float]:
    """Return the key by which jobs start: higher priority first, then the earlier submission."""
    priority = 0.0 if math.isnan(job.priority) else job.priority
    return (-priority, job.submit_s if job.submit_s == job.submit_s else 0.0)


start_order = _order
"""Key by which jobs start, the smallest first."""


def counted_by_node(log: JobLog) -> JobLog:
    """Return the log with nodes as devices if no job of it names a device; else the log as it is."""
    if log.nodes_as_devices or any(job.devices for job in log.jobs):
        return log
    jobs = tuple(replace(job, devices=max(job.nodes, 1)) for job in log.jobs)
    return replace(log, jobs=jobs, nodes_as_devices=True)


def _scheduler(form: str) -> Scheduler:
    return "kueue" if form in ("kueue", "volcano") else "ray" if "ray" in form else "slurm"


def set_apart(jobs: Sequence[LoggedJob], running: Sequence[LoggedJob], scheduler: Scheduler) -> list[LoggedJob]:
    """Return the waiting jobs that their scheduler will not start: held, at a limit, refused, or waiting for another event.

    A job that may start from a stated time on is not among them. A priority of 0 holds a job of Slurm if others have more.
    """
    ranked = scheduler == "slurm" and any(job.priority > 0 for job in (*jobs, *running))
    found = []
    for job in jobs:
        kind = reason_of(job, scheduler).kind
        late = kind == "later" and math.isnan(job.eligible_s)
        if kind == "apart" or late or (ranked and job.priority == 0):
            found.append(job)
    return found


def _begun(job: LoggedJob, now_s: float) -> LoggedJob:
    """Return a job that waits for a time with that time, which Slurm states as its expected start."""
    if reason_of(job).kind != "later" or job.eligible_s > now_s:
        return job
    return replace(job, eligible_s=job.planned_start_s)


def _is_part(job: LoggedJob) -> bool:
    """Return whether a job holds or asks for parts of devices: MIG slices, or shares."""
    return bool(job.profile) or job.share < 1


def _unusable(job: LoggedJob, nodes: QueueNodes) -> tuple[str, str] | None:
    """Return why a waiting job is not simulated, as reason and detail of a skipped row; None if it is."""
    if _is_part(job):
        return "ask for parts of a GPU, which are not simulated", job.profile or f"{job.share:.3g} of a GPU"
    if job.devices <= 0:
        return "name no device that they ask for", ""
    pool = nodes.pool(job)
    there = int(nodes.devices[list(pool)].sum())
    if not there:
        return "may use none of the nodes", ", ".join(job.device_types) or job.queue
    if job.devices > there:
        return "ask for more devices than the nodes that they may use have", f"{job.devices} of {there}"
    return None


OVER_S = 600.0
"""Time by which a running job exceeds its limit before the time of the file is doubted. Slurm allows some minutes."""


def _over_limit(running: Sequence[LoggedJob], file: str) -> list[str]:
    """Return a sentence on the running job that is the furthest over its limit; none without one."""
    over = [job for job in running if job.limit_s and job.run_s > job.limit_s + OVER_S]
    if not over:
        return []
    worst = max(over, key=lambda job: job.run_s - job.limit_s)
    text = format_seconds(worst.run_s - worst.limit_s)
    return [f"Running job {worst.name} is {text} over its limit: if {file} is older, state its time with --at."]


def in_cluster_queues(jobs: Sequence[LoggedJob]) -> tuple[LoggedJob, ...]:
    """Return jobs of Kueue with their cluster queue as queue, and without nodes: a quota says nothing of nodes."""
    return tuple(replace(job, queue=job.account or job.queue, nodes=0) for job in jobs)


def guessed_placements(nodes: QueueNodes, running: Sequence[LoggedJob]) -> list[tuple[tuple[int, int], ...]]:
    """Return the devices of each running job by node.

    A job whose nodes the log names is there, in equal parts. Others get the nodes with the fewest free devices that hold them,
    the largest first.
    """
    from paceline.scheduling.starts.backfill import Shape, ShapeOnNodes

    number = {name: node for node, name in enumerate(nodes.names)}
    free = nodes.devices.copy()
    placements: list[tuple[tuple[int, int], ...]] = [() for _ in running]
    unknown_nodes = []
    for index, job in enumerate(running):
        names = [name for name in getattr(job, "node_names", ()) if name in number]
        if not names:
            unknown_nodes.append(index)
            continue
        share, more = divmod(job.devices, len(names))
        placements[index] = tuple((number[name], share + (at < more)) for at, name in enumerate(names) if share + (at < more))
        for node, count in placements[index]:
            free[node] -= count
    free = np.maximum(free, 0)
    for index in sorted(unknown_nodes, key=lambda index: -running[index].devices):
        job = running[index]
        pool = nodes.pool(job) or tuple(range(len(nodes.devices)))
        whole = ShapeOnNodes(Shape(pool, job.devices, job.nodes))
        loose = ShapeOnNodes(Shape(pool, job.devices))
        chosen = whole.place(free) if whole.fits(free) else loose.place(free)
        placements[index] = chosen
        for node, count in chosen:
            free[node] -= count
    return placements
