"""Live queue of a cluster: its nodes, the jobs that run, that wait, and that ended before."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from paceline.errors import UserError, unknown
from paceline.scheduling.placement import Placement
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.queues_file import Settings
from paceline.scheduling.queues.slurm_limits import MINUTES
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.queues.unknown_names import ignored_limits, unstated_resources
from paceline.scheduling.starts.admission import (
    BlockedQueues,
    admitted_whole,
    in_cluster_queues,
    in_open_partitions,
    is_evicted,
    never_fits,
    refusal,
    with_named_queues,
)
from paceline.scheduling.starts.arrivals import components_joined, predecessors
from paceline.scheduling.starts.policy_cluster import PolicyCluster, spans_nodes
from paceline.scheduling.starts.preemptions import preemptable_text
from paceline.scheduling.starts.queue_nodes import QueueNodes, guessed_placements
from paceline.scheduling.starts.reason_codes import held_text, reason_of
from paceline.scheduling.traces.record import JobLog, LoggedJob, SkippedRow, singular
from paceline.units import format_seconds

Scheduler = Literal["slurm", "kueue", "volcano", "ray"]
KUEUE_LEFT_OUT = (
    "Kueue's admission checks, quotas of processors and memory, and topology beyond one node are not simulated. A job starts "
    "when nodes hold all of its pods. A preempted job continues its work."
)
VOLCANO_LEFT_OUT = (
    "Volcano's weights and capabilities of queues, priorities and gangs are simulated. Its actions reclaim and preempt, off by "
    "default, are not."
)
"""Remarks on the rules that are left out."""
IN_GPUS = "--gpus is not in TRES_PER_NODE: print squeue --json"
"""Hint for a job of squeue's text that names no device."""
_LEFT_OUT = {"kueue": (KUEUE_LEFT_OUT,), "volcano": (VOLCANO_LEFT_OUT,)}


@dataclass(frozen=True, kw_only=True)
class WaitingQueue:
    """Queue at one moment. Times are seconds on one clock.

    Attributes:
        now_s: the moment.
        scheduler: scheduler whose rules are simulated.
        running: jobs that hold devices. ``waiting``: jobs that wait, the next one first. ``held``: waiting jobs whose start is
            not up to the scheduler.
        history: jobs that ended.
        cluster: nodes and settings for the policy of the scheduler; None: jobs start by priority and submission.
        blocked: queues whose first job can never be admitted.
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
    cluster: PolicyCluster | None = None
    blocked: BlockedQueues = field(default_factory=lambda: BlockedQueues({}))
    skipped: tuple[SkippedRow, ...] = ()
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        log: JobLog,
        nodes: QueueNodes,
        history: JobLog | None = None,
        scheduler: Scheduler | None = None,
        settings: Settings | None = None,
    ) -> WaitingQueue:
        """Build the queue from a log of its jobs.

        Args:
            history: log of jobs that ended before, on the same clock.
            scheduler: scheduler whose rules are simulated; None: that which wrote the log.
            settings: settings of the scheduler; None: those that the log states.
        """
        running, waiting = log.in_state("running"), log.in_state("waiting")
        rules = scheduler or scheduler_of(log.form)
        settings = settings_of(log, rules, settings)
        now_s = log.moment_s
        known = {job.name for job in (*running, *waiting)}
        past = history.in_state("ended") if history is not None else ()
        ended = tuple(job for job in log.in_state("ended") if job.run_s > 0)
        ended += tuple(job for job in past if job.run_s > 0 and job.name not in known)
        waiting = tuple(_begun(job, now_s) for job in waiting)
        running, waiting = _throttled(running, waiting)
        joined, parts = components_joined(waiting)
        waiting = tuple(joined)
        cluster = None
        notes = [*log.notes, *nodes.notes]
        if isinstance(settings, SlurmSettings):
            waiting = in_open_partitions(waiting, settings)
        if isinstance(settings, KueueSettings):
            asked = waiting
            running, waiting, ended = (in_cluster_queues(jobs, settings, nodes.quotas) for jobs in (running, waiting, ended))
            if rules == "kueue":
                waiting = admitted_whole(waiting, asked, running, settings, nodes.total)
            notes += _gangs(waiting, asked, rules)
        evicted = tuple(replace(job, state="waiting") for job in running if is_evicted(job))
        running = tuple(job for job in running if not is_evicted(job))
        if settings is not None and nodes.types:
            single = any(job.devices > 1 and (job.nodes == 1 or job.topology == "node") for job in (*running, *waiting))
            single = single or any(map(spans_nodes, waiting))
            single = single or isinstance(settings, KueueSettings)  # whose pods are each on one node
            single = single or (isinstance(settings, SlurmSettings) and settings.preempt != "none")  # stops jobs by node
            cluster = PolicyCluster.of(nodes, settings, single)
        held = [*evicted, *set_apart(waiting, running, rules, settings if isinstance(settings, SlurmSettings) else None)]
        apart = {job.name for job in held}
        waiting = tuple(sorted((job for job in waiting if job.name not in apart), key=_order))
        blocked = BlockedQueues.of(waiting, cluster) if cluster else BlockedQueues({})
        usable, skipped = [], list(log.skipped)
        for job in waiting:
            if cluster is not None and (refused := refusal(job, cluster, blocked, rules)):
                held.append(replace(job, reason=refused))
            elif why := unusable(job, nodes, cluster):
                hint = IN_GPUS if not job.devices and log.form == "squeue" else why[1]
                skipped.append(SkippedRow(job.place, job.name, why[0], hint))
            elif refused := never_fits(job, nodes):
                held.append(replace(job, reason=refused))
            else:
                usable.append(job)
        usable, orphans = _with_predecessors(usable, running)
        held += orphans
        ending = [job for job in running if job.status == "COMPLETING"]
        if ending:
            notes.append(f"Running jobs that are completing: {len(ending):,}. Their devices count as free.")
        return cls(
            now_s=now_s,
            scheduler=rules,
            nodes=nodes,
            running=tuple(job for job in running if job.devices > 0 and not _is_part(job, nodes) and job not in ending),
            waiting=tuple(usable),
            held=tuple(held),
            history=ended,
            cluster=cluster,
            blocked=blocked,
            skipped=tuple(skipped),
            remarks=(
                *parts,
                *_over_limit(running, log.file),
                *ignored_limits(settings, live=True),
                *unstated_resources([job.resources for job in (*running, *waiting)], settings),
            ),
            notes=(*notes, *_LEFT_OUT.get(rules, ()), *_without_history(ended, history, rules)),
        )

    @cached_property
    def placements(self) -> list[Placement]:
        """Devices of each running job by node."""
        return guessed_placements(self.nodes, self.running)

    def job(self, name: str) -> LoggedJob:
        """Return a waiting job by its name, its title, or the part of its name after the namespace if that is unique.

        The name of an array stands for its first waiting task.

        Raises:
            UserError: no such job, with the nearest names; several of them.
        """
        for fits in (_is_named, _ends_with, _in_array):
            found = [job for job in self.waiting if fits(job, name)]
            if len(found) > 1 and fits is _ends_with:
                names = ", ".join(job.name for job in found[:3])
                raise UserError(f"{len(found)} waiting jobs are named {name}", f"name one of {names}")
            if found:
                return found[0]
            if any(fits(job, name) for job in self.running):
                raise UserError(f"job {name} runs already", f"name one that waits{self._preemptable(name)}")
            for job in self.held:
                if fits(job, name):
                    raise UserError(f"job {name} is not up to the scheduler", held_text(job))
            for row in self.skipped:
                if name in (row.name, row.name.rpartition("/")[2]) and row.name:
                    detail = f" ({row.detail})" if row.detail else ""
                    raise UserError(f"job {row.name} is not simulated", f"it {singular(row.reason)}{detail}")
        raise unknown("waiting job", name, [job.name for job in self.waiting])

    def _preemptable(self, name: str) -> str:
        """Return a remark on the jobs that may preempt a running job; empty if none may."""
        settings = self.cluster.settings if self.cluster else None
        job = next(job for job in self.running if any(fits(job, name) for fits in (_is_named, _ends_with, _in_array)))
        text = preemptable_text(job, settings) if isinstance(settings, SlurmSettings) else ""
        return f". {text[:-1]}" if text else ""

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
    if log.nodes_as_devices or not log.jobs or any(job.devices for job in log.jobs):
        return log
    jobs = tuple(replace(job, devices=max(job.nodes, 1)) for job in log.jobs)
    return replace(log, jobs=jobs, nodes_as_devices=True)


def _is_named(job: LoggedJob, name: str) -> bool:
    return name in (job.name, job.title)


def _ends_with(job: LoggedJob, name: str) -> bool:
    return job.name.rpartition("/")[2] == name


def _in_array(job: LoggedJob, name: str) -> bool:
    return bool(job.array) and job.array == name


def scheduler_of(form: str) -> Scheduler:
    """Return the scheduler that writes logs of a form."""
    return "kueue" if form == "kueue" else "volcano" if form == "volcano" else "ray" if "ray" in form else "slurm"


def settings_of(log: JobLog, scheduler: Scheduler, settings: Settings | None = None) -> Settings | None:
    """Return the settings with which a queue is simulated: the given ones, or those of the log.

    None: Slurm's printed priorities or Ray's order count.

    Raises:
        UserError: settings of another scheduler.
    """
    if settings is not None:
        taking = "slurm" if isinstance(settings, SlurmSettings) else "kueue"
        if taking != scheduler:
            raise UserError(
                f"settings of {taking.capitalize()} for a queue of {scheduler.capitalize()}", "give its own settings"
            )
        return settings
    if scheduler not in ("kueue", "volcano"):
        return None
    found = log.queues if log.queues is not None and not log.nodes_as_devices else KueueSettings()
    return with_named_queues(found, log.jobs) if scheduler == "volcano" and found.queues else found


def _without_history(ended: Sequence[LoggedJob], history: JobLog | None, scheduler: Scheduler) -> list[str]:
    """Return a sentence on the lack of ended jobs; none if there are some."""
    if ended:
        return []
    if history is None:
        return ["No history of ended jobs was given: lengths follow from limits and published ratios alone."]
    why = f"{history.file or 'The history'} holds no job that ended" + "; print sacct" * (scheduler == "slurm")
    return [f"{why}. Lengths follow from limits and published ratios alone."]


def _gangs(waiting: Sequence[LoggedJob], asked: Sequence[LoggedJob], scheduler: Scheduler) -> list[str]:
    """Return a sentence on the waiting jobs that start with a part of their devices; none without one.

    Args:
        asked: the same jobs with all of their devices.
    """
    found = [(job, whole) for job, whole in zip(waiting, asked, strict=True) if job.gang]
    least = "at least " if scheduler == "kueue" else ""
    names = ", ".join(f"{job.name} with {least}{job.gang} of {whole.devices}" for job, whole in found[:3])
    what = "a part of their pods (minCount)" if scheduler == "kueue" else "their gang (minAvailable)"
    return [f"Jobs that start with {what}: {names}{', ...' * (len(found) > 3)}."] if found else []


def set_apart(
    jobs: Sequence[LoggedJob], running: Sequence[LoggedJob], scheduler: Scheduler, settings: SlurmSettings | None = None
) -> list[LoggedJob]:
    """Return the waiting jobs that their scheduler will not start: held, at a limit, refused, or waiting for another event.

    A job that may start from a stated time on is not among them. A priority of 0 holds a job of Slurm if others have more.

    Args:
        settings: settings of Slurm. A job at a bound of devices that they state is simulated.
    """
    ranked = scheduler == "slurm" and any(job.priority > 0 for job in (*jobs, *running))
    found = []
    for job in jobs:
        kind = reason_of(job, scheduler).kind
        late = kind == "later" and math.isnan(job.eligible_s)
        bounded = settings is not None and _at_bound(job, settings)
        bounded = bounded or (job.throttle > 0 and job.reason.startswith(_AT_THROTTLE))
        if job.after and job.reason.startswith("Dependency") and "Never" not in job.reason:
            continue
        if (kind == "apart" and not bounded) or late or (ranked and job.priority == 0):
            found.append(job)
    return found


def _with_predecessors(waiting: Sequence[LoggedJob], running: Sequence[LoggedJob]) -> tuple[list[LoggedJob], list[LoggedJob]]:
    """Return the jobs whose predecessors run or are simulated too, and the others with the reason."""
    kept = list(waiting)
    orphans: list[LoggedJob] = []
    while True:
        present = [*running, *kept]
        lost = [job for job in kept if job.after and predecessors(job, present) is None]
        if not lost:
            return kept, orphans
        gone = {job.name for job in lost}
        kept = [job for job in kept if job.name not in gone]
        orphans += [replace(job, reason=f"Dependency on {', '.join(filter(None, dict(job.after)))}") for job in lost]


_AT_THROTTLE = "JobArrayTaskLimit"


def _throttled(
    running: Sequence[LoggedJob], waiting: Sequence[LoggedJob]
) -> tuple[tuple[LoggedJob, ...], tuple[LoggedJob, ...]]:
    """Return jobs with the throttle of their array, which Slurm prints in rows of waiting tasks alone.

    If a task waits for the throttle and no row states it, the throttle is the number of running tasks.
    """
    stated = {job.array: job.throttle for job in waiting if job.array and job.throttle}
    if not stated and not any(job.reason.startswith(_AT_THROTTLE) for job in waiting):
        return tuple(running), tuple(waiting)
    count = Counter(job.array for job in running if job.array)
    full = {job.array for job in waiting if job.reason.startswith(_AT_THROTTLE) and count[job.array]}
    throttle = {array: count[array] for array in full} | stated
    first, second = (
        tuple(replace(job, throttle=throttle.get(job.array, 0) if job.array else 0) for job in jobs)
        for jobs in (running, waiting)
    )
    return first, second


_BOUND = re.compile(
    r"^\(?(Assoc|QOS)(?:Grp|Max)(GRES|Jobs|Wall|CPU|Node|Mem)\w*?(RunMinutes|MinutesPerJob|Minutes)?", re.IGNORECASE
)
"""Reasons of Slurm that name a bound of devices, of jobs, of time limits, or of other resources."""
_BOUNDED = {"gres": "gpu", "cpu": "cpu", "node": "node", "mem": "mem"}
"""Resources by the words of reasons."""


def _at_bound(job: LoggedJob, settings: SlurmSettings) -> bool:
    """Return whether the settings state the bound for which a job waits. A bound on all past minutes is not simulated."""
    named = _BOUND.match(job.reason)
    if named is None or (named[3] or "").casefold() == "minutes":
        return False
    what, of_qos = named[2].casefold(), named[1].casefold() == "qos"
    found = settings.bounds(job.account, job.user, job.queue.split(",")[0], job.qos).bounds
    found = tuple(bound for bound in found if (bound.scope[0] == "qos") is of_qos)
    if what == "wall":
        return any(bound.what == "seconds" and job.limit_s > bound.most for bound in found)
    if what == "jobs":
        return any(bound.what == "jobs" for bound in found)
    resource = "" if what == "gres" and not named[3] else f"{_BOUNDED[what]}{MINUTES * bool(named[3])}"
    return any(bound.what in ("devices", "job") and bound.resource == resource for bound in found)


def _begun(job: LoggedJob, now_s: float) -> LoggedJob:
    """Return a job that waits for a time with that time, which Slurm states as its expected start."""
    if reason_of(job).kind != "later" or job.eligible_s > now_s:
        return job
    return replace(job, eligible_s=job.planned_start_s)


def _is_part(job: LoggedJob, nodes: QueueNodes) -> bool:
    """Return whether a job holds or asks for parts of devices that no node has: MIG slices, or shares."""
    return not nodes.pool(job) if job.profile else job.share < 1


def unusable(job: LoggedJob, nodes: QueueNodes, cluster: PolicyCluster | None) -> tuple[str, str] | None:
    """Return why a waiting job is not simulated, as reason and detail of a skipped row; None if it is."""
    if _is_part(job, nodes):
        if job.profile:
            return "ask for MIG slices that the nodes do not have", f"{job.devices} of {job.profile}"
        return "ask for parts of a GPU, which are not simulated", f"{job.share:.3g} of a GPU"
    if job.devices <= 0:
        return "name no device that they ask for", ""
    pool = nodes.pool(job)
    there = int(nodes.devices[list(pool)].sum())
    if not there:
        return "may use none of the nodes", ", ".join(job.device_types) or job.queue
    if cluster is not None and job.devices > (most := cluster.within_quotas(job)):
        return "ask for more devices than their queue may use", f"{job.devices}; {job.queue} may use {most}"
    there = there if cluster is None or nodes.quotas else cluster.most(job)
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
