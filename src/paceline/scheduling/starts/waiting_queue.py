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
from paceline.scheduling.traces.record import JobLog, LoggedJob, QueueQuota

Scheduler = Literal["slurm", "kueue", "ray"]


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
        notes: remarks on left-out jobs and on assumptions.
    """

    now_s: float
    scheduler: Scheduler
    nodes: QueueNodes
    running: tuple[LoggedJob, ...]
    waiting: tuple[LoggedJob, ...]
    held: tuple[LoggedJob, ...] = ()
    history: tuple[LoggedJob, ...] = ()
    quotas: tuple[QueueQuota, ...] = ()
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
        held = [job for job in waiting if is_held(job, now_s)]
        usable: list[LoggedJob] = []
        left_out: list[LoggedJob] = []
        for job in waiting:
            if job in held:
                continue
            (usable if 0 < job.devices <= int(nodes.devices[list(nodes.pool(job))].sum()) else left_out).append(job)
        notes = [*log.notes, *nodes.notes]
        if left_out:
            names = ", ".join(job.name for job in left_out[:3]) + (", ..." if len(left_out) > 3 else "")
            notes.append(f"{len(left_out):,} waiting jobs ask for no device or for more than their nodes have: {names}.")
        return cls(
            now_s=now_s,
            scheduler=rules,
            nodes=nodes,
            running=tuple(job for job in running if job.devices > 0),
            waiting=tuple(sorted(usable, key=_order)),
            held=tuple(held),
            history=tuple(ended),
            quotas=log.quotas,
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


_HELD = ("JobHeld", "Dependency", "Deactivated", "launch_failed_requeued_held", "JobArrayTaskLimit", "DeadLine")


def is_held(job: LoggedJob, now_s: float) -> bool:
    """Return whether a waiting job waits for something else than devices: a release, another job, a later time."""
    return job.reason.strip("()").startswith(_HELD) or job.eligible_s > now_s


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
