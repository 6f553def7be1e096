"""Job that a user thinks of submitting, in words: ``8 A100 for llama-3-8b 1B tokens, limit 12h``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from paceline.errors import UserError, shorten, unknown
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.queues.kueue_settings import KueueSettings
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.admission import refusal, submit_refusal, takes_none
from paceline.scheduling.starts.reason_codes import held_text
from paceline.scheduling.starts.waiting_queue import WaitingQueue, unusable
from paceline.scheduling.traces.logs.gres import split_slice
from paceline.scheduling.traces.logs.log_times import parse_duration
from paceline.scheduling.traces.record import LoggedJob, singular
from paceline.units import parse_seconds

EXAMPLE = 'write it as "8 A100 for llama-3-8b 1B tokens" or "2x8 A100 for 3h, limit 12h, queue gpu"'
NAME = "new job"
_FORM = re.compile(
    r"^(?:(?P<nodes>\d+)\s*(?:x|nodes?\s+(?:of|with|x))\s*(?=\d))?(?P<devices>\d+)\s*(?:x\s*(?=\D))?(?P<type>.*?)\s+for\s+(?P<work>.+)$",
    re.IGNORECASE,
)
_ANY_TYPE = re.compile(r"\s*\b(?:gpu|device|accelerator|card)s?$", re.IGNORECASE)
_CLOCK = re.compile(r"^(?:\d+-)?\d+(?::\d+){1,2}$|^\d+-\d+$")
_AMOUNT = re.compile(r"^(?P<network>.+?)\s+(?P<amount>[\d.,]+\s*[kMBT]?)\s+(?P<unit>tokens|samples|steps)$", re.IGNORECASE)
_KEYS = ("limit", "queue", "user", "account", "qos", "priority")
_OTHER_KEYS = {"time": "limit", "partition": "queue"}
"""Slurm's words for two of them (sbatch(1), --time and --partition)."""


@dataclass(frozen=True)
class NewJob:
    """Job in words.

    Attributes:
        run_s: length that the user states; 0: it follows from the work. ``words``: words of ``paceline ask`` for the work.
        remarks: sentences on what is unknown of it.
    """

    job: LoggedJob
    run_s: float = 0.0
    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def parse_new(text: str, queue: WaitingQueue) -> NewJob:
    """Parse a new job for a queue.

    Raises:
        UserError: text in another form, an unknown device, queue or account, more devices than the cluster has, a job that the
            scheduler never starts.
    """
    first, *behind = [part.strip() for part in text.split(",")]
    found = _FORM.match(first)
    if found is None or (found["nodes"] and not int(found["nodes"])):
        raise UserError(f"new job {shorten(text)!r}", EXAMPLE)
    nodes, devices = int(found["nodes"] or 0), int(found["devices"])
    others = dict(_other(part) for part in behind)
    kind = _ANY_TYPE.sub("", found["type"].strip())
    base, profile, share = split_slice(kind)
    types = (device(base).name if is_device(base) and not profile else base,) if base else ()
    limit_s = _seconds(others["limit"]) if "limit" in others else 0.0
    run_s, words = _work(found["work"].strip())
    priority = _priority(others["priority"]) if "priority" in others else _usual_priority(queue)
    account, remarks = _account(others, queue)
    place, stopped = _queue(others.get("queue", ""), queue)
    job = LoggedJob(
        name=NAME,
        state="waiting",
        submit_s=queue.now_s,
        limit_s=limit_s,
        devices=devices * max(nodes, 1),
        nodes=nodes,
        node_devices=devices if nodes else 0,
        device_types=types,
        profile=profile,
        share=share,
        user=others.get("user", ""),
        queue=place,
        account=account,
        qos=_qos(others["qos"], queue) if "qos" in others else "",
        priority=priority,
        command=" ".join(words),
    )
    if job.devices < 1 or job.devices > sum(int(queue.nodes.devices[node]) for node in queue.nodes.pool(job)):
        counts: dict[str, int] = {}
        for there, size in zip(queue.nodes.types, queue.nodes.devices, strict=True):
            counts[there or "devices"] = counts.get(there or "devices", 0) + int(size)
        has = ", ".join(f"{count} {there}" for there, count in counts.items())
        raise UserError(f"{job.devices} {kind or 'devices'} for the new job", f"the cluster has {has}")
    job = _startable(job, queue, stopped, first.partition(" for ")[0])
    return NewJob(job, run_s, words, remarks)


def _startable(job: LoggedJob, queue: WaitingQueue, stopped: str, asked: str) -> LoggedJob:
    """Return the job as its scheduler sees it. Raises UserError if it never starts.

    Args:
        stopped: why its queue admits nothing. ``asked``: devices as the user wrote them.
    """
    cluster = queue.cluster
    if cluster is not None and isinstance(cluster.settings, KueueSettings):
        if queue.nodes.quotas and job.nodes > 1:
            what = f"{job.nodes} pods of {job.devices // job.nodes} devices for the new job"
            raise UserError(what, f"give `cluster` or `nodes`: quotas count devices alone, such as {job.devices} for ...")
        job = replace(job, nodes=0, pods=job.nodes)  # a quota says nothing of nodes
    if cluster is not None and not stopped:
        stopped = refusal(job, cluster, queue.blocked)
        if isinstance(cluster.settings, SlurmSettings) and not stopped:
            stopped = submit_refusal(job, (*queue.running, *queue.waiting, *queue.held), cluster.settings)
    if stopped:
        raise UserError("the new job is not up to the scheduler", held_text(replace(job, reason=stopped)))
    sizes = [int(queue.nodes.devices[node]) for node in queue.nodes.pool(job)]
    each = job.devices // max(job.nodes, job.pods, 1)
    if job.pods and not queue.nodes.quotas and sum(size // each for size in sizes) < job.pods:
        has = f"the nodes that it may use hold {sum(size // each for size in sizes)} pods of {each} devices"
        raise UserError(f"{asked.strip()} for the new job", has)
    if job.nodes and sum(size >= each for size in sizes) < job.nodes:
        has = f"the nodes that it may use are {len(sizes)}, of {max(sizes)} at most"
        raise UserError(f"{asked.strip()} for the new job", has)
    if why := unusable(job, queue.nodes, cluster):
        reason, detail = why
        raise UserError("the new job is not simulated", f"it {singular(reason)}" + (f" ({detail})" if detail else ""))
    return job


def _queue(stated: str, queue: WaitingQueue) -> tuple[str, str]:
    """Return the queue of the new job, and why it admits nothing. Raises UserError for an unknown one.

    A local queue of Kueue stands for its cluster queue.
    """
    settings = queue.cluster.settings if queue.cluster is not None else None
    usual = stated or _usual_queue(queue)
    if isinstance(settings, KueueSettings):
        return _cluster_queue(stated, usual, settings)
    known = {*queue.nodes.of_queue, *(settings.partitions if settings is not None else ())}
    if known and stated:
        known |= {name for job in (*queue.running, *queue.waiting) for name in job.queue.split(",")}
        for name in stated.split(","):
            if name not in known:
                raise unknown("queue of the new job", name, sorted(known))
    return usual, takes_none(usual, settings) if settings is not None else ""


def _cluster_queue(stated: str, usual: str, settings: KueueSettings) -> tuple[str, str]:
    """Return the cluster queue of a local or cluster queue, and why it admits nothing."""
    queues, local = settings.queues, settings.local_queues
    spaced = any("/" in path for path in local)
    local = {path: name for path, name in local.items() if "/" in path or not spaced}
    if not queues:
        return usual, ""
    paths = [path for path in local if stated and stated in (path, path.rpartition("/")[2])]
    if len({local[path] for path in paths}) > 1:
        raise UserError(f"several LocalQueues are named {stated}", f"name one of {', '.join(paths)}")
    if paths:
        closed = all(path in settings.stopped for path in paths)
        return local[paths[0]], f"LocalQueue {paths[0]} is stopped" if closed else ""
    if usual in queues:
        return usual, ""
    if not stated and len(queues) == 1:
        return next(iter(queues)), ""
    raise unknown("queue of the new job", usual, list(dict.fromkeys((*local, *queues))), 'add "queue NAME"')


def _account(others: dict[str, str], queue: WaitingQueue) -> tuple[str, tuple[str, ...]]:
    """Return the account of the new job: the stated one, or the user's only one. Remarks say if Slurm's limits miss it."""
    settings = queue.cluster.settings if queue.cluster is not None else None
    stated, user = others.get("account", ""), others.get("user", "")
    if stated and queue.scheduler != "slurm":
        raise UserError(f"account {stated} of the new job", "only Slurm has accounts")
    accounts = settings.accounts if isinstance(settings, SlurmSettings) else {}
    if stated and accounts and stated not in accounts:
        raise unknown("account of the new job", stated, list(accounts))
    if stated or (not user and not accounts) or queue.scheduler != "slurm":
        return stated, ()
    of_user = {name for name, account in accounts.items() if user and user in account.users}
    jobs = (*queue.running, *queue.waiting, *queue.held)
    of_user = of_user or {job.account for job in jobs if user and job.user == user and job.account}
    if len(of_user) == 1:
        return of_user.pop(), ()
    remark = 'The new job has no known account: no limits and no share of one count for it. Add "account NAME".'
    return "", (remark,) if accounts else ()


def _qos(name: str, queue: WaitingQueue) -> str:
    """Return Slurm's quality of service of the new job. Raises UserError for an unknown one, or without Slurm's settings."""
    settings = queue.cluster.settings if queue.cluster is not None else None
    if not isinstance(settings, SlurmSettings):
        raise UserError(f"qos {name} of the new job", "give Slurm's settings with `queues`: only they say what it means")
    if name not in settings.qos:
        raise unknown("qos of the new job", name, list(settings.qos))
    return name


def _priority(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"priority {shorten(text)!r} of the new job", "give a number such as 5000")
    return value


def _other(part: str) -> tuple[str, str]:
    key, _, value = part.partition(" ")
    key = _OTHER_KEYS.get(key.casefold(), key.casefold())
    if key not in _KEYS or not value.strip():
        raise unknown("part of the new job", key, _KEYS, EXAMPLE)
    return key, value.strip()


def _seconds(text: str) -> float:
    """Return the seconds of ``90min`` or of Slurm's ``1-12:00:00``. Raises UserError for another text."""
    return parse_duration(text) if _CLOCK.match(text) else parse_seconds(text)


def _work(text: str) -> tuple[float, tuple[str, ...]]:
    try:
        return _seconds(text), ()
    except UserError:
        amount = _AMOUNT.match(text)
        if amount is None:
            raise UserError(f"work {shorten(text)!r} of the new job", EXAMPLE) from None
        words = (amount["network"].strip(), f"--{amount['unit'].casefold()}", amount["amount"].replace(" ", ""))
        return 0.0, words


def _usual_queue(queue: WaitingQueue) -> str:
    """Return the queue that most present jobs are in; empty without one."""
    names = [job.queue for job in (*queue.waiting, *queue.running)]
    return max(set(names), key=names.count, default="")


def _usual_priority(queue: WaitingQueue) -> float:
    """Return the priority of the last waiting job; a job that has not waited yet has no age."""
    return min((job.priority for job in queue.waiting), default=0.0)
