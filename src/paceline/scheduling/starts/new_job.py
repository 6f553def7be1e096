"""Job that a user thinks of submitting, in words: ``8 A100 for llama-3-8b 1B tokens, limit 12h``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.errors import UserError, shorten, unknown
from paceline.hardware.catalogue import device, is_device
from paceline.scheduling.starts.waiting_queue import WaitingQueue
from paceline.scheduling.traces.record import LoggedJob
from paceline.units import parse_seconds

EXAMPLE = 'write it as "8 A100 for llama-3-8b 1B tokens" or "2x8 A100 for 3h, limit 12h, queue gpu"'
NAME = "new job"
_FORM = re.compile(r"^(?:(?P<nodes>\d+)\s*x\s*)?(?P<devices>\d+)\b\s*(?P<type>.*?)\s+for\s+(?P<work>.+)$", re.IGNORECASE)
_AMOUNT = re.compile(r"^(?P<network>.+?)\s+(?P<amount>[\d.,]+\s*[kMBT]?)\s+(?P<unit>tokens|samples|steps)$", re.IGNORECASE)
_KEYS = ("limit", "queue", "user", "priority")


@dataclass(frozen=True)
class NewJob:
    """Job in words.

    Attributes:
        run_s: length that the user states; 0: it follows from the work. ``words``: words of ``paceline ask`` for the work.
    """

    job: LoggedJob
    run_s: float = 0.0
    words: tuple[str, ...] = ()


def parse_new(text: str, queue: WaitingQueue) -> NewJob:
    """Parse a new job for a queue.

    Raises:
        UserError: text in another form, an unknown device, more devices than the cluster has.
    """
    first, *behind = [part.strip() for part in text.split(",")]
    found = _FORM.match(first)
    if found is None:
        raise UserError(f"new job {shorten(text)!r}", EXAMPLE)
    nodes, devices = int(found["nodes"] or 0), int(found["devices"])
    others = dict(_other(part) for part in behind)
    kind = found["type"].strip()
    types = (device(kind).name if is_device(kind) else kind,) if kind else ()
    limit_s = parse_seconds(others["limit"]) if "limit" in others else 0.0
    run_s, words = _work(found["work"].strip())
    priority = float(others["priority"]) if others.get("priority", "").lstrip("-").isdigit() else _usual_priority(queue)
    job = LoggedJob(
        name=NAME,
        state="waiting",
        submit_s=queue.now_s,
        limit_s=limit_s,
        devices=devices * max(nodes, 1),
        nodes=nodes,
        device_types=types,
        user=others.get("user", ""),
        queue=others.get("queue", _usual_queue(queue)),
        priority=priority,
        command=" ".join(words),
    )
    if job.devices < 1 or job.devices > sum(int(queue.nodes.devices[node]) for node in queue.nodes.pool(job)):
        has = ", ".join(dict.fromkeys(filter(None, queue.nodes.types))) or "devices"
        raise UserError(f"{job.devices} {kind or 'devices'} for the new job", f"the cluster has {queue.nodes.total} {has}")
    return NewJob(job, run_s, words)


def _other(part: str) -> tuple[str, str]:
    key, _, value = part.partition(" ")
    if key.casefold() not in _KEYS or not value.strip():
        raise unknown("part of the new job", key, _KEYS, EXAMPLE)
    return key.casefold(), value.strip()


def _work(text: str) -> tuple[float, tuple[str, ...]]:
    try:
        return parse_seconds(text), ()
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
