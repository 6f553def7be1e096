"""Waiting jobs that the settings of Slurm, Kueue or Volcano never admit, and the cluster queue of each job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.scheduling.queues.kueue_objects import DRAIN, SLICE
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.policy_cluster import PolicyCluster
from paceline.scheduling.starts.queue_nodes import QueueNodes
from paceline.scheduling.traces.logs.volcano import ANY_DEVICE, COHORT
from paceline.scheduling.traces.record import LoggedJob
from paceline.scheduling.traces.type_names import types_meant


def in_cluster_queues(jobs: Sequence[LoggedJob], settings: KueueSettings, by_flavor: bool = False) -> tuple[LoggedJob, ...]:
    """Return jobs with their cluster queue as queue, and with pods instead of nodes: a quota says nothing of nodes.

    A job of no known queue keeps its name of the queue, and has the reason.

    Args:
        by_flavor: keep the names of flavors among their types, because nodes are flavors.
    """
    found = []
    flavors = set() if by_flavor else {flavor for queue in settings.queues.values() for flavor in queue.quotas}
    flavors |= {flavor.split(SLICE)[0] for flavor in flavors}
    for job in jobs:
        name, missing = _cluster_queue(job, settings)
        reason = missing if job.state == "waiting" and missing else job.reason
        if job.state == "running" and name in settings.queues:
            reason = _eviction(job, name, settings) or reason
        gang = job.gang if job.state == "waiting" and job.gang else job.devices
        pods = job.nodes * gang // job.devices if job.gang and job.devices and not job.nodes * gang % job.devices else job.nodes
        types = tuple(kind for kind in job.device_types if kind not in flavors)
        found.append(replace(job, queue=name or job.queue, nodes=0, pods=pods, reason=reason, devices=gang, device_types=types))
    return tuple(found)


def admitted_whole(
    jobs: Sequence[LoggedJob], asked: Sequence[LoggedJob], running: Sequence[LoggedJob], settings: KueueSettings, total: int
) -> tuple[LoggedJob, ...]:
    """Return waiting jobs of Kueue, with all pods for one that is first in line and for which enough is free at present.

    Kueue admits fewer pods, down to ``minCount``, only where all of them do not fit (PartialAdmission). A job that must wait
    starts once its least number fits.

    Args:
        asked: the same jobs with all pods. ``total``: devices of the nodes.
    """
    free = total - sum(job.devices for job in running)
    first = min(((-job.priority, job.submit_s) for job in jobs), default=None)
    found = []
    for job, whole in zip(jobs, asked, strict=True):
        queue = settings.queues.get(job.queue)
        if (
            job.gang
            and (-job.priority, job.submit_s) == first
            and queue is not None
            and whole.devices <= min(free, _free_of(job, queue, running))
        ):
            job = replace(job, devices=whole.devices, pods=whole.nodes, gang=0)
        found.append(job)
    return tuple(found)


def _free_of(job: LoggedJob, queue: ClusterQueue, running: Sequence[LoggedJob]) -> float:
    """Return the devices of one flavor that a queue has left, all of its running jobs counted, before what its cohort lends."""
    borrows = {flavor: quota.borrowing_limit for flavor, quota in queue.quotas.items()} if queue.cohort else {}
    most = [
        quota.nominal + (math.inf if borrows.get(flavor, 0) is None else borrows.get(flavor, 0) or 0)
        for flavor, quota in queue.quotas.items()
    ]
    return max(most, default=0) - sum(other.devices for other in running if other.queue == job.queue)


def _cluster_queue(job: LoggedJob, settings: KueueSettings) -> tuple[str, str]:
    """Return the cluster queue of a job, and why it has none."""
    if not settings.queues:
        return job.account or job.queue, ""
    if job.queue not in settings.queues and any(ANY_DEVICE in queue.quotas for queue in settings.queues.values()):
        return "", f"Queue {job.queue} doesn't exist"
    space = job.name.rpartition("/")[0]
    path, local = f"{space}/{job.queue}" if space else job.queue, settings.local_queues
    spaced = any("/" in name for name in local)
    found = job.account or local.get(path, "" if spaced else local.get(job.queue, ""))
    if found in settings.queues:
        stopped = job.state == "waiting" and path in settings.stopped
        return found, f"LocalQueue {path} is stopped" if stopped else ""
    if found:
        return "", f"ClusterQueue {found} doesn't exist"
    if local:
        return "", f"LocalQueue {path} doesn't exist"
    if job.queue in settings.queues:
        return job.queue, ""
    if len(settings.queues) == 1:
        return next(iter(settings.queues)), ""
    return "", f"LocalQueue {path} is not in the file, which has several cluster queues"


def _eviction(job: LoggedJob, queue: str, settings: KueueSettings) -> str:
    """Return why Kueue evicts a running job of a cluster queue; empty: it does not."""
    space = job.name.rpartition("/")[0]
    path = f"{space}/{job.queue}" if space else job.queue
    if settings.queues[queue].drains:
        return f"ClusterQueue {queue} is stopped, and evicts its running jobs ({DRAIN})"
    return f"LocalQueue {path} is stopped, and evicts its running jobs ({DRAIN})" if path in settings.drained else ""


def is_evicted(job: LoggedJob) -> bool:
    """Return whether a running job of ``in_cluster_queues`` is evicted because its queue drains."""
    return job.state == "running" and DRAIN in job.reason


def with_named_queues(settings: KueueSettings, jobs: Sequence[LoggedJob]) -> KueueSettings:
    """Return the settings of Volcano with the queues in which jobs started though the file lacks them, and ``default``.

    They have no bound. A job that waits in another queue names one that does not exist.
    """
    names = {job.queue for job in jobs if job.state != "waiting" or job.queue == "default"} - set(settings.queues)
    fresh = {name: ClusterQueue(quotas={ANY_DEVICE: Quota()}, cohort=COHORT) for name in sorted(names)}
    return replace(settings, queues={**settings.queues, **fresh})


@dataclass(frozen=True)
class BlockedQueues:
    """Queues under StrictFIFO whose first job can never be admitted, with that job: no later one of the queue passes it."""

    heads: dict[str, LoggedJob]

    @classmethod
    def of(cls, jobs: Sequence[LoggedJob], cluster: PolicyCluster) -> BlockedQueues:
        """Return the blocked queues. ``jobs``: waiting jobs, the next one first."""
        heads: dict[str, LoggedJob] = {}
        if isinstance(cluster.settings, KueueSettings):
            for job in jobs:
                queue = cluster.settings.queues.get(job.queue)
                strict = queue is not None and queue.strategy == "StrictFIFO" and job.queue not in heads
                if strict and job.devices > cluster.within_quotas(job):
                    heads[job.queue] = job
        return cls(heads)

    def blocks(self, job: LoggedJob) -> bool:
        """Return whether a job is behind one that can never be admitted."""
        head = self.heads.get(job.queue)
        if head is None or head.name == job.name:
            return False
        return (-job.priority, job.submit_s) > (-head.priority, head.submit_s)


def refusal(job: LoggedJob, cluster: PolicyCluster, blocked: BlockedQueues, scheduler: str = "kueue") -> str:
    """Return why the settings never admit a waiting job, in words; empty if they may.

    Args:
        scheduler: ``volcano`` for its words.
    """
    settings = cluster.settings
    if isinstance(settings, SlurmSettings):
        kinds = tuple(cluster.nodes.types[node] for node in cluster.nodes.pool(job))
        return _closed(job, settings) or _of_names(job, settings) or _over_bound(job, settings, kinds)
    if job.queue not in settings.queues:
        return ""
    if settings.queues[job.queue].stopped:
        return f"Queue {job.queue} is closed" if scheduler == "volcano" else f"ClusterQueue {job.queue} is stopped"
    if blocked.blocks(job):
        head = blocked.heads[job.queue]
        most = cluster.within_quotas(head)
        return f"ClusterQueue {job.queue} is blocked by {head.name}, which asks for {head.devices} of at most {most}"
    return ""


def never_fits(job: LoggedJob, nodes: QueueNodes) -> str:
    """Return why no nodes could ever hold a waiting job, in words; empty if they could.

    Its nodes or pods each need their devices on one node. A number of nodes without the devices of each is a minimum, and says
    nothing.
    """
    each = job.node_devices or (job.devices // job.pods if job.pods and not job.devices % job.pods else 0)
    sizes = [int(nodes.devices[node]) for node in nodes.pool(job)]
    if each <= 1 or nodes.quotas or not sizes:
        return ""
    if each > max(sizes):
        return f"never starts: it asks for {each} devices on one node, and the nodes that it may use have {max(sizes)} at most"
    if job.node_devices:
        parts, what, there = job.nodes, "nodes", sum(size >= each for size in sizes)
    else:
        parts, what, there = job.pods, "pods", sum(size // each for size in sizes)
    if parts <= there:
        return ""
    return f"never starts: it asks for {parts} {what} of {each} devices, and the nodes that it may use hold {there}"


def in_open_partitions(jobs: Sequence[LoggedJob], settings: SlurmSettings) -> tuple[LoggedJob, ...]:
    """Return jobs of Slurm without the partitions that start none, or not this job, unless they state no other.

    Jobs that state none are in the default one.
    """
    shut = {name for name, stated in settings.partitions.items() if not stated.starts}
    found = []
    for job in jobs:
        every = (job.queue or settings.default_partition).split(",")
        names = [name for name in every if name not in shut]
        names = [name for name in names if not settings.refusal(job.account, job.user, name, job.qos)] or names
        names = names or every
        found.append(job if names == job.queue.split(",") else replace(job, queue=",".join(names)))
    return tuple(found)


def _of_names(job: LoggedJob, settings: SlurmSettings) -> str:
    """Return why Slurm runs no job of this account, user, partition and quality of service; empty: it does."""
    return settings.kind(job.account, job.user, job.queue.split(",")[0], job.qos).refused


def _closed(job: LoggedJob, settings: SlurmSettings) -> str:
    """Return why the partition of a job starts none; empty: it does. A job of ``in_open_partitions`` has only such ones."""
    name = job.queue.split(",")[0]
    stated = settings.partitions.get(name)
    if stated is None or stated.starts:
        return ""
    return f"partition {name} is {stated.state}: it starts no job until scontrol update PartitionName={name} State=UP"


def takes_none(queue: str, settings: SlurmSettings) -> str:
    """Return why Slurm takes no new job in some partitions; empty: it does."""
    every = [settings.partitions.get(name) for name in queue.split(",")]
    closed = [each.state for each in every if each is not None and not each.takes]
    if not closed or len(closed) < len(every):
        return ""
    return f"partition {queue} is {closed[0]}: it takes no new job until scontrol update PartitionName={queue} State=UP"


def _over_bound(job: LoggedJob, settings: SlurmSettings, kinds: Sequence[str]) -> str:
    """Return the limit of Slurm that a job exceeds by itself on each type that it may use; empty: none.

    Args:
        kinds: types of the nodes that it may use.
    """
    left, why = set(kinds), ""
    for bound in settings.bounds(job.account, job.user, job.queue.split(",")[0], job.qos).bounds:
        asked = bound.asked(job.devices, job.limit_s, job.resources)
        if asked is None or asked <= bound.most:
            continue
        if not bound.device_type:
            return f"never starts: {bound.text_alone(asked)}"
        meant = types_meant(bound.device_type, tuple(left))
        left, why = left.difference(meant), bound.text_alone(asked) if meant else why
    return f"never starts: {why}" if why and not left else ""


def submit_refusal(job: LoggedJob, others: Sequence[LoggedJob], settings: SlurmSettings) -> str:
    """Return the limit on jobs that wait or run that a new job would exceed; empty: none.

    Args:
        others: jobs that wait or run.
    """
    for bound in settings.kind(job.account, job.user, job.queue.split(",")[0], job.qos).bounds.submits:
        kinds = [settings.kind(other.account, other.user, other.queue.split(",")[0], other.qos) for other in others]
        there = sum(any(each.scope == bound.scope for each in kind.bounds.submits) for kind in kinds)
        if there >= bound.most:
            return f"Slurm refuses it: {bound.text_alone(1)}, and has {there:,}"
    return ""
