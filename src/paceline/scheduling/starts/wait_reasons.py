"""Reasons why a job of a live queue waits: free devices, jobs before it, and which devices come free first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.starts.arrivals import predecessors
from paceline.scheduling.starts.forecast import Forecaster
from paceline.scheduling.starts.preemptions import Preemptions, preemptable_text, starts_text, stopped_text
from paceline.scheduling.starts.reason_codes import reason_text
from paceline.scheduling.starts.waiting_queue import WaitingQueue, start_order
from paceline.scheduling.traces.record import LoggedJob
from paceline.units import format_seconds

FEW = 3
"""Most names in a sentence."""


def wait_reasons(
    forecaster: Forecaster, queue: WaitingQueue, job: LoggedJob, preemptions: Preemptions | None = None
) -> tuple[str, ...]:
    """Return sentences on what a waiting job waits for, and on preemption.

    Args:
        queue: queue with its nodes.
    """
    return (*_sentences(forecaster, queue, job), *_preemptions(queue, job, preemptions or Preemptions()))


def _preemptions(queue: WaitingQueue, job: LoggedJob, preemptions: Preemptions) -> Iterator[str]:
    """Yield the preemptions by which a job starts or loses its devices, and the jobs that may preempt it."""
    found = preemptions.of(job.name)
    for text in (starts_text(found), stopped_text(found)):
        if text:
            yield f"It {text}."
    settings = queue.cluster.settings if queue.cluster else None
    if isinstance(settings, SlurmSettings) and (text := preemptable_text(job, settings)):
        yield text


def _sentences(forecaster: Forecaster, queue: WaitingQueue, job: LoggedJob) -> Iterator[str]:
    if text := reason_text(job):
        yield f"{queue.scheduler.capitalize()} says {text}."
    if job.after and (text := _after(forecaster, queue, job)):
        yield text
        return
    if job.eligible_s > queue.now_s:
        yield f"It may start in {format_seconds(job.eligible_s - queue.now_s)} at the earliest."
    if queue.cluster is not None:
        yield from _under_policy(forecaster, queue, job)
        return
    pool = np.array(queue.nodes.pool(job), np.int64)
    placements = queue.placements
    free = queue.nodes.devices.copy()
    for placement in placements:
        for node, count in placement:
            free[node] -= count
    free = np.maximum(free, 0)[pool]
    kinds = ", ".join(dict.fromkeys(kind for kind in (queue.nodes.types[node] for node in pool.tolist()) if kind)) or "devices"
    total = int(queue.nodes.devices[pool].sum())
    most = f", at most {int(free.max(initial=0))} on a node" if job.nodes and free.sum() else ""
    spread = f" on {job.nodes} node{'s' * (job.nodes > 1)}" if job.nodes and queue.nodes.types[0] != "node" else ""
    yield f"It asks for {job.devices} {kinds}{spread}; {int(free.sum())} of {total} are free{most}."
    nodes = set(pool.tolist())
    pools = {queue.nodes.pool(other) for other in queue.waiting}
    sharing = {each for each in pools if not nodes.isdisjoint(each)}
    place = start_order(job)
    before = [other for other in queue.waiting if start_order(other) < place and queue.nodes.pool(other) in sharing]
    if before:
        yield _before(before)
    yield from _first_free(forecaster, queue, job, nodes, placements, int(free.sum()), before)


def _after(forecaster: Forecaster, queue: WaitingQueue, job: LoggedJob) -> str:
    """Return a sentence on the jobs that a job waits for; empty if no such job is left."""
    present = [*queue.running, *queue.waiting]
    found = []
    for place, event in predecessors(job, present) or ():
        other = present[place]
        when = f" (in {format_seconds(forecaster.expected_left(other))})" if other.state == "running" and event == "end" else ""
        found.append(f"{event} of {other.name}{when}")
    more = f" and {len(found) - FEW} more" if len(found) > FEW else ""
    return f"It may start after the {', '.join(found[:FEW])}{more}." if found else ""


def _under_policy(forecaster: Forecaster, queue: WaitingQueue, job: LoggedJob) -> Iterator[str]:
    """Yield the reason of the policy, and the jobs of the same queue before it."""
    unit = f"{job.profile or 'device'}{'s' * (job.devices != 1 and not job.profile)}"
    reason = forecaster.reasons.get(job.name, "")
    yield f"It asks for {job.devices} {unit} in queue {job.queue}" + (f"; {reason}." if reason else ".")
    settings = queue.cluster.settings if queue.cluster else None
    if isinstance(settings, SlurmSettings) and settings.multifactor:
        return  # the order is in the reason, and changes
    before = [other for other in queue.waiting if start_order(other) < start_order(job) and other.queue == job.queue]
    if before:
        yield _before(before)


def _before(before: list[LoggedJob]) -> str:
    """Return a sentence on the jobs before one."""
    names = ", ".join(f"{other.name} ({other.user + ', ' * bool(other.user)}{other.devices})" for other in before[:FEW])
    more = f" and {len(before) - FEW} more" if len(before) > FEW else ""
    asked = sum(other.devices for other in before)
    verb = "jobs are" if len(before) > 1 else "job is"
    return f"{len(before)} {verb} before it and ask{'s' * (len(before) == 1)} for {asked} devices: {names}{more}."


def _first_free(
    forecaster: Forecaster,
    queue: WaitingQueue,
    job: LoggedJob,
    nodes: set[int],
    placements: list[tuple[tuple[int, int], ...]],
    free: int,
    before: list[LoggedJob],
) -> Iterator[str]:
    """Yield a sentence on the running jobs whose expected ends free enough devices for it and those before it."""
    ends = []
    for other, placement in zip(queue.running, placements, strict=True):
        count = sum(part for node, part in placement if node in nodes)
        if count:
            left_s = forecaster.expected_left(other)
            ends.append((left_s, count, other))
    ends.sort(key=lambda end: end[0])
    missing = job.devices + sum(other.devices for other in before) - free
    if missing <= 0 or not ends:
        return
    gained, last = 0, 0
    for at, (_, count, _) in enumerate(ends):
        gained += count
        last = at
        if gained >= missing:
            break
    chosen = ends[: last + 1]
    names = ", ".join(f"{other.name} (in {format_seconds(left_s)})" for left_s, _, other in chosen[:FEW])
    more = f" and {len(chosen) - FEW} more" if len(chosen) > FEW else ""
    if gained >= missing:
        yield f"Enough devices come free when {names}{more} end, by their expected lengths."
    else:
        yield "More devices are asked for before it than all running jobs hold."
