"""Figures of a schedule: times, devices, fairness, energy, cost, and decision times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.simulate.first_come import first_come_s
from paceline.scheduling.simulate.schedule import ClusterSchedule, JobOutcome

UNFAIR = 1.05
"""Finish-time fairness above which a job is treated unfairly (Shockwave, NSDI 2023)."""
BOUND_S = 10.0
"""Shortest time that counts, as in the bounded slowdown (Feitelson, Rudolph, JSSPP 1998): shorter delays are not unfair."""


@dataclass(frozen=True, slots=True)
class WorstWait:
    """Job whose wait was longest relative to its time on devices.

    Attributes:
        name: its name; empty: no job waited. ``waited_s``: seconds without devices. ``ran_s``: seconds on devices.
    """

    name: str = ""
    waited_s: float = math.nan
    ran_s: float = math.nan

    @property
    def ratio(self) -> float:
        """Wait over time on devices, of which at least ``BOUND_S`` count."""
        return self.waited_s / max(self.ran_s, BOUND_S)


@dataclass(frozen=True, kw_only=True)
class ScheduleMetrics:
    """Figures of a schedule; unknown ones are NaN. Completion times are those of the jobs that ended.

    Attributes:
        jobs, ended: number of jobs that arrived, and that ended.
        deadlines, met, removed: jobs with a deadline, jobs that met it, and jobs that the policy turned away or stopped.
        mean_jct_s, median_jct_s, p99_jct_s: completion time, from arrival to end.
        mean_wait_s: time from arrival to the first device.
        makespan_s: time from the first arrival to the last end, or to the last removal of a job that held devices.
        device_hours_per_job: devices held times hours, including starts.
        restarts_per_job: restarts and resizes.
        worst_fairness, unfair_share: finish-time fairness, estimated or simulated. ``unfair_share``: jobs above ``UNFAIR``
            that lost more than one round and one start.
        worst_wait: ended job with the longest wait relative to its time on devices, among waits above that.
        utilisation: device-seconds held / all device-seconds of the makespan.
        energy_kwh: energy of held devices at ``NodeGroup.watts``. ``usd``: cost of held devices at ``NodeGroup.price``.
        decision_median_s, decision_p99_s: seconds of this machine per decision of the policy.
        decisions: number of decisions, including rounds skipped by ``holds_until_s``.
    """

    jobs: int
    ended: int
    deadlines: int
    met: int
    removed: int
    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    mean_wait_s: float
    makespan_s: float
    device_hours_per_job: float
    restarts_per_job: float
    worst_fairness: float
    unfair_share: float
    worst_wait: WorstWait
    utilisation: float
    energy_kwh: float
    usd: float
    decision_median_s: float
    decision_p99_s: float
    decisions: int

    def to_json(self) -> dict[str, Any]:
        """Return all figures by name."""
        return {**asdict(self), "worst_wait": {**asdict(self.worst_wait), "ratio": self.worst_wait.ratio}}


def metrics(
    schedule: ClusterSchedule, ratios: Mapping[str, float] | None = None, negligible_s: float = BOUND_S
) -> ScheduleMetrics:
    """Return the figures of a schedule.

    Args:
        ratios: finish-time fairness of each job that ended (``simulate.fairness``); None: it is estimated.
        negligible_s: longest delay that is not unfair: a round and a start.
    """
    every = schedule.outcomes
    ended = [outcome for outcome in every if not math.isnan(outcome.end_s)]
    jct = np.array([outcome.jct_s for outcome in ended])
    if ratios is None:
        rho, shared = estimated_fairness(schedule, ended), jct
    else:
        rho = np.array(list(ratios.values()))
        shared = np.array([outcome.jct_s for outcome in ended if outcome.job.name in ratios])
    held_s = _held_s(schedule)
    first = min((outcome.job.arrival_s for outcome in every), default=0.0)
    over_s = [outcome.end_s for outcome in ended]
    over_s += [outcome.spans[-1].end_s for outcome in every if outcome.removed and outcome.spans]
    makespan = max(over_s, default=math.nan) - first
    waits = [outcome.start_s - outcome.job.arrival_s for outcome in every if outcome.spans]
    seconds = np.array(schedule.decision_s)
    return ScheduleMetrics(
        jobs=len(every),
        ended=len(ended),
        deadlines=sum(outcome.job.deadline_s < math.inf for outcome in every),
        met=sum(outcome.met for outcome in ended if outcome.job.deadline_s < math.inf),
        removed=sum(bool(outcome.removed) for outcome in every),
        mean_jct_s=_of(np.mean, jct),
        median_jct_s=_of(np.median, jct),
        p99_jct_s=_quantile(jct, 99),
        mean_wait_s=_of(np.mean, np.array(waits)),
        makespan_s=makespan,
        device_hours_per_job=sum(held_s.values()) / 3600 / len(every) if every else math.nan,
        restarts_per_job=_of(np.mean, np.array([outcome.restarts for outcome in every])),
        worst_fairness=_of(np.max, rho),
        unfair_share=_of(np.mean, (rho > UNFAIR) & (shared - shared / np.maximum(rho, 1e-9) > negligible_s)),
        worst_wait=_worst_wait(ended, negligible_s),
        utilisation=sum(held_s.values()) / (schedule.fleet.devices * makespan) if makespan > 0 else math.nan,
        energy_kwh=_charged(schedule, held_s, "watts") / 1000,
        usd=_charged(schedule, held_s, "price"),
        decision_median_s=_of(np.median, seconds),
        decision_p99_s=_quantile(seconds, 99),
        decisions=len(schedule.active) if len(seconds) else 0,
    )


def estimated_fairness(schedule: ClusterSchedule, ended: list[JobOutcome]) -> Array:
    """Estimate the finish-time fairness of ended jobs: the ratio of completion time to that on a fair share. Up to 1 is fair.

    The fair share is the cluster's devices over the mean number of jobs during the job's life. On it the job takes the time
    that it held devices, multiplied by devices held / share if that exceeds 1 (after Themis, NSDI 2020, section 3). A rigid job
    takes at most ``first_come_s``.
    """
    if not ended:
        return np.zeros(0)
    arrivals = np.sort([outcome.job.arrival_s for outcome in schedule.outcomes])
    ends = np.sort([outcome.end_s for outcome in ended])
    moments = np.unique(np.concatenate([arrivals, ends]))
    present = np.searchsorted(arrivals, moments, "right") - np.searchsorted(ends, moments, "right")
    passed = np.concatenate([[0.0], np.cumsum(present[:-1] * np.diff(moments))])
    arrival, end = np.array([(outcome.job.arrival_s, outcome.end_s) for outcome in ended]).T
    jobs = (np.interp(end, moments, passed) - np.interp(arrival, moments, passed)) / np.maximum(end - arrival, 1e-9)
    ran = np.array([sum(span.end_s - span.start_s for span in outcome.spans) for outcome in ended])
    held = np.array([outcome.device_s for outcome in ended]) / np.maximum(ran, 1e-9)
    alone = ran * np.maximum(held * np.maximum(jobs, 1.0) / schedule.fleet.devices, 1.0)
    over = np.array([not math.isnan(outcome.end_s) for outcome in schedule.outcomes], bool)
    alone = np.minimum(alone, first_come_s(schedule)[over])
    return np.asarray((end - arrival) / np.maximum(alone, 1e-9))


def _worst_wait(ended: list[JobOutcome], negligible_s: float) -> WorstWait:
    waits = []
    for outcome in ended:
        ran_s = sum(span.end_s - span.start_s for span in outcome.spans)
        if outcome.jct_s - ran_s > negligible_s + 1e-6:
            waits.append(WorstWait(outcome.job.name, outcome.jct_s - ran_s, ran_s))
    return max(waits, key=lambda wait: wait.ratio, default=WorstWait())


def _held_s(schedule: ClusterSchedule) -> dict[str, float]:
    """Return the device-seconds held, by type."""
    held = dict.fromkeys(schedule.fleet.types, 0.0)
    for outcome in schedule.outcomes:
        for span in outcome.spans:
            devices = sum(count for _, count in span.placement) * outcome.job.share
            held[span.device] += (span.end_s - span.start_s) * devices
    return held


def _charged(schedule: ClusterSchedule, held_s: dict[str, float], what: str) -> float:
    """Return device-hours times the rate of each type; NaN if a used type has none."""
    rates = {group.device: getattr(group, what) or math.nan for group in schedule.fleet.groups}
    return math.fsum(seconds / 3600 * rates[device] for device, seconds in held_s.items() if seconds)


def _of(function: Callable[[Any], Any], values: Any) -> float:
    return float(function(values)) if len(values) else math.nan


def _quantile(values: Array, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan
