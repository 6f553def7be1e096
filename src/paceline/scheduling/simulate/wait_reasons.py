"""Reasons why a job waited, and why it got its devices, from the spans of a schedule."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.schedule import ClusterSchedule, JobOutcome, Span
from paceline.scheduling.simulate.simulated import SimulatedSchedule, job_row
from paceline.units import format_seconds

FEW = 3
"""Most names in a sentence."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Period of a job's life, in which it waited (no ``devices``) or ran.

    Attributes:
        nodes: devices by node, such as ``n0 x4, n1 x2``; empty: it waited.
        why: sentences on the reason.
        strategy: strategy in words; empty: unknown.
    """

    start_s: float
    end_s: float
    devices: int
    device: str
    nodes: str
    why: tuple[str, ...]
    strategy: str = ""

    @property
    def what(self) -> str:
        """Description: ``on 8 T4 (n0 x4, n1 x4) as zero3, tensor 2``, or ``waited``."""
        text = f"on {self.devices} {self.device} ({self.nodes})" if self.devices else "waited"
        return f"{text} as {self.strategy}" if self.strategy else text


@dataclass(frozen=True, kw_only=True)
class JobHistory:
    """Life of a job under a policy, from arrival to end. ``goes_on``: True if it has not ended and still may."""

    policy: str
    outcome: JobOutcome
    asked: str
    stretches: tuple[Stretch, ...]
    goes_on: bool = False

    @property
    def waited_s(self) -> float:
        """Seconds without devices between arrival and end."""
        return sum(stretch.end_s - stretch.start_s for stretch in self.stretches if not stretch.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the job and each period of its life."""
        stretches = [{name: getattr(stretch, name) for name in Stretch.__slots__} for stretch in self.stretches]
        row = dict(job_row(self.outcome))
        return {"policy": self.policy, "job": row, "asked": self.asked, "waited_s": self.waited_s, "stretches": stretches}


def why(simulated: SimulatedSchedule, name: str) -> JobHistory:
    """Return the waits and devices of a job with their reasons. Raises UserError for an unknown job, with the nearest names."""
    outcome = simulated.outcome(name)
    return JobHistory(
        policy=simulated.policy,
        outcome=outcome,
        asked=_asked(outcome.job),
        stretches=tuple(_life(simulated, outcome)),
        goes_on=_goes_on(simulated, outcome),
    )


def _goes_on(simulated: SimulatedSchedule, outcome: JobOutcome) -> bool:
    return simulated.schedule.until_s is not None and math.isnan(outcome.end_s) and not outcome.removed


def _asked(job: Job) -> str:
    """Describe the owner's request."""
    text = f"{job.devices} device{'s' * (job.devices > 1)}"
    text += f" of {' or '.join(job.device_types)}" if job.device_types else ""
    if "devices" in job.adapts:
        most = f" to {job.max_devices}" if job.max_devices else " up"
        text += f", elastic from {job.min_devices}{most}"
    text += (f", batch {job.batch:,}" if job.batch else "") + (", which may change" if "batch" in job.adapts else "")
    text += f", as {job.strategy}" if job.strategy else ""
    return text + (", strategy of the predictor's choice" if "strategy" in job.adapts else "")


def _life(simulated: SimulatedSchedule, outcome: JobOutcome) -> Iterator[Stretch]:
    """Yield waits and spans in turn, without those of no length."""
    moment = outcome.job.arrival_s
    for index, span in enumerate(outcome.spans):
        if span.start_s > moment:
            yield Stretch(moment, span.start_s, 0, "", "", tuple(_why_wait(simulated, outcome, moment, span)))
        if span.end_s > span.start_s:
            before = outcome.spans[index - 1] if index else None
            sentences = tuple(_why_devices(simulated, outcome, span, before))
            nodes = ", ".join(f"{simulated.schedule.fleet.name(node)} x{count}" for node, count in span.placement)
            yield Stretch(span.start_s, span.end_s, _devices(span), span.device, nodes, sentences, span.strategy)
        moment = span.end_s
    if _goes_on(simulated, outcome):
        now_s = simulated.schedule.until_s or 0.0
        if moment < now_s:
            yield Stretch(moment, now_s, 0, "", "", (*_why_wait(simulated, outcome, moment, None), "It still waits."))
    elif math.isnan(outcome.end_s):
        until = math.nan if outcome.removed_s is None else outcome.removed_s
        last = () if outcome.removed else ("It never ended.",)
        yield Stretch(moment, until, 0, "", "", (*_why_wait(simulated, outcome, moment, None), *last))


def _why_wait(simulated: SimulatedSchedule, outcome: JobOutcome, moment: float, until: Span | None) -> Iterator[str]:
    """Return sentences on the free devices and their holders when the wait began, and on the devices freed at its end."""
    schedule = simulated.schedule
    if outcome.removed and until is None:
        when = format_seconds(outcome.removed_s or 0.0)
        yield f"{simulated.policy} removed it {when} after the trace's start: {outcome.removed.rstrip('.')}."
        return
    holders, waiting = _others_at(schedule, outcome, moment)
    held = dict.fromkeys(schedule.fleet.types, 0)
    for span in holders:
        held[span.device] += _devices(span)
    away = ~schedule.fleet.up(moment)
    free = []
    for index, group in enumerate(schedule.fleet.groups):
        gone = int(schedule.fleet.node_devices[away & (schedule.fleet.node_types == index)].sum())
        there = group.devices - gone
        text = f"{max(there - held[group.device], 0)} of {there} {group.device}"
        free.append(text + (f" ({gone} away)" if gone else ""))
    stopped = [other for time_s, other in outcome.preempted if _before(outcome, moment) <= time_s <= moment]
    if stopped:
        yield f"It was preempted for {stopped[-1]}."
    ahead = sum(1 for other in waiting if other.job.arrival_s <= outcome.job.arrival_s)
    yield f"Free were {', '.join(free)}; {_jobs(len(holders))} held devices."
    if waiting:
        before = {0: "none ", len(waiting): "all " if ahead > 1 else ""}.get(ahead, f"{ahead:,} of them ")
        yield f"{_jobs(len(waiting))} waited too, {before}since before it came."
    over_s = math.inf if until is None else until.start_s
    said = dict.fromkeys(reason for time_s, reason in outcome.held_back if moment <= time_s < over_s)
    for reason in list(said)[:FEW]:
        yield f"Held back: {reason.rstrip('.')}."
    if len(said) > FEW:
        yield f"Then {len(said) - FEW:,} further reasons held it back."
    if until is None:
        return
    passed = _decisions(simulated, moment, until.start_s)
    if schedule.active and not passed:
        yield f"Decisions are made every {format_seconds(simulated.settings.round_s)}, and this was the next."
        return
    if passed > 1:
        yield f"{simulated.policy} left it waiting at {passed:,} decisions."
    gave = [
        other.job.name
        for other in schedule.outcomes
        if other is not outcome and _shrank(other, until, simulated.settings.round_s)
    ]
    if gave:
        yield f"It started when {_short_list(gave)} ended or gave devices back."


def _before(outcome: JobOutcome, moment: float) -> float:
    """Return the start of the span that ended at a moment; inf if there is none."""
    return next((span.start_s for span in outcome.spans if span.end_s == moment), math.inf)


def _preempted_for(schedule: ClusterSchedule, outcome: JobOutcome, since_s: float, until_s: float) -> list[str]:
    """Return the jobs that were preempted for a job in a period."""
    return [
        other.job.name
        for other in schedule.outcomes
        if any(name == outcome.job.name and since_s <= time_s <= until_s for time_s, name in other.preempted)
    ]


def _decisions(simulated: SimulatedSchedule, from_s: float, to_s: float) -> int:
    """Return the number of decisions in a period. A live schedule records none, so its rounds are counted."""
    if simulated.schedule.fleet.names:
        return int((to_s - from_s) / max(simulated.settings.round_s, 1e-3))
    moments = [decided for decided, _ in simulated.schedule.active]
    return bisect_left(moments, to_s) - bisect_left(moments, from_s)


def _why_devices(simulated: SimulatedSchedule, outcome: JobOutcome, span: Span, before: Span | None) -> Iterator[str]:
    """Return the reason given by the policy, or else one that follows from the job and the policy."""
    job, devices = outcome.job, _devices(span)
    if span.reason:
        yield span.reason[0].upper() + span.reason[1:].rstrip(".") + "."
    elif "devices" not in job.adapts & simulated.adapts:
        by = f"; {simulated.policy} changes no sizes" if "devices" in job.adapts else ""
        yield f"Rigid: it gets the {job.devices} that it asked for, or none{by}."
    else:
        holders, waiting = _others_at(simulated.schedule, outcome, span.start_s)
        share = simulated.schedule.fleet.devices / (len(holders) + len(waiting) + 1)
        asked = f", it had asked for {job.devices}" if job.devices != devices else ", as many as it asked for"
        yield f"The policy {simulated.policy} gave {devices}{asked}; an equal share of all jobs was {share:.3g}."
    since_s = job.arrival_s if before is None else before.end_s
    if victims := _preempted_for(simulated.schedule, outcome, since_s, span.start_s):
        yield f"{_short_list(victims)} {'was' if len(victims) == 1 else 'were'} preempted for it."
    if before is not None and before.end_s == span.start_s and _devices(before) != devices:
        yield f"It had {_devices(before)} before."
    if before is not None and before.strategy != span.strategy:
        yield f"Its strategy changed: it ran as {before.strategy} before."
    if len(span.placement) > 1:
        yield (
            f"No single node had {devices} free, so it is on {len(span.placement)}."
            if _fits_one(simulated, span)
            else (f"A node holds fewer than {devices}, so it is on {len(span.placement)}.")
        )
    yield from _why_racks(simulated.schedule.fleet, span)


def _why_racks(fleet: Fleet, span: Span) -> Iterator[str]:
    """Return a sentence on the racks of a span; none for one rack."""
    group = next(group for group in fleet.groups if group.device == span.device)
    least, crossed = group.least_racks(len(span.placement)), fleet.crossed(span.placement)
    if crossed:
        yield f"No free nodes lay in {least} rack{'s' * (least > 1)}, so it is in {crossed} ({group.racks_text})."
    elif least > 1:
        yield f"It is in {least} racks ({group.racks_text})."


def _fits_one(simulated: SimulatedSchedule, span: Span) -> bool:
    largest = {group.device: group.devices_per_node for group in simulated.schedule.fleet.groups}
    return _devices(span) <= largest[span.device]


def _others_at(schedule: ClusterSchedule, own: JobOutcome, moment: float) -> tuple[list[Span], list[JobOutcome]]:
    """Return the spans of other jobs that hold devices at a moment, and the jobs that wait then."""
    holders, waiting = [], []
    for other in schedule.outcomes:
        over_s = other.end_s if other.removed_s is None or math.isnan(other.removed_s) else other.removed_s
        if other is own or other.job.arrival_s > moment or over_s <= moment:
            continue
        held = next((span for span in reversed(other.spans) if span.start_s <= moment < span.end_s), None)
        if held:
            holders.append(held)
        else:
            waiting.append(other)
    return holders, waiting


def _shrank(other: JobOutcome, until: Span, round_s: float) -> bool:
    """Return whether a job held fewer devices of the type at the start of the span than in the previous round."""
    same = [span for span in other.spans if span.device == until.device and span.start_s < span.end_s]
    ended = sum(_devices(span) for span in same if until.start_s - round_s <= span.end_s <= until.start_s)
    held = sum(_devices(span) for span in same if span.start_s <= until.start_s < span.end_s)
    return ended > held


def _devices(span: Span) -> int:
    return sum(count for _, count in span.placement)


def _jobs(number: int) -> str:
    return f"{number:,} job{'s' * (number != 1)}" if number else "no job"


def _short_list(names: Sequence[str]) -> str:
    return ", ".join(names[:FEW]) + (f" and {len(names) - FEW} more" if len(names) > FEW else "")
