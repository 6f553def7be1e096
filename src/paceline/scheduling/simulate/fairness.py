"""Finish-time fairness: the ratio of a job's completion time to that on its share of the cluster alone.

Themis, NSDI 2020, section 3.1; for several device types as Sia defines it, SOSP 2023, section 5.5. A job's share is all devices
over the mean number of jobs during its life. A ratio above 1 means that the job lost by sharing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.run import JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Policy

Alone = Callable[[Job, int, int], float]
"""Completion time in seconds of a job alone on a number of devices of a group; NaN: it does not fit."""


@dataclass(frozen=True)
class Fairness:
    """Finish-time fairness of a schedule.

    Attributes:
        ratio: completion time / completion time alone on its share, for each job that ended. Smaller is better.
    """

    ratio: Mapping[str, float]

    @property
    def worst(self) -> float:
        """Largest ratio; NaN if no job ended."""
        return max(self.ratio.values(), default=math.nan)

    @property
    def unfair_share(self) -> float:
        """Share of the jobs with a ratio above 1; NaN if no job ended."""
        return float(np.mean([ratio > 1 for ratio in self.ratio.values()])) if self.ratio else math.nan


def finish_time_fairness(schedule: ClusterSchedule, alone: Alone) -> Fairness:
    """Return the ratios of all jobs that ended and can run alone on some share.

    Between two whole numbers of devices times are interpolated. Below one device the time grows as the share falls. A rigid job
    runs on its requested devices; its time grows by the factor of devices over share. Types are weighted by their devices.
    """
    rivals = mean_jobs(schedule)
    ratios = {}
    for outcome in schedule.outcomes:
        if math.isnan(outcome.end_s):
            continue
        share = schedule.fleet.devices / rivals[outcome.job.name]
        fair = _fair_s(outcome.job, schedule.fleet, share, alone)
        if fair > 0:
            ratios[outcome.job.name] = outcome.jct_s / fair
    return Fairness(ratios)


def mean_jobs(schedule: ClusterSchedule) -> dict[str, float]:
    """Return the mean number of present jobs, including itself, over the decisions during each job's life."""
    moments, counts = np.array(schedule.active, dtype=float).reshape(-1, 2).T
    sums = np.concatenate([[0.0], counts.cumsum()])
    means = {}
    for outcome in schedule.outcomes:
        first = int(np.searchsorted(moments, outcome.job.arrival_s))
        behind = len(moments) if math.isnan(outcome.end_s) else int(np.searchsorted(moments, outcome.end_s))
        means[outcome.job.name] = float(sums[behind] - sums[first]) / (behind - first) if behind > first else 1.0
    return means


def _fair_s(job: Job, fleet: Fleet, share: float, alone: Alone) -> float:
    seconds, weights = [], []
    for index, group in enumerate(fleet.groups):
        if "devices" in job.adapts:
            time_s = _alone_on_share(job, index, min(share, float(group.devices)), alone)
        else:
            time_s = alone(job, index, job.devices) * max(job.devices / share, 1.0)
        if not math.isnan(time_s):
            seconds.append(time_s)
            weights.append(group.devices)
    return float(np.average(seconds, weights=weights)) if seconds else math.nan


def _alone_on_share(job: Job, group: int, share: float, alone: Alone) -> float:
    if share < 1:
        return alone(job, group, 1) / share
    low = math.floor(share)
    first = alone(job, group, low)
    return first if low == share else first + (alone(job, group, low + 1) - first) * (share - low)


def alone_under(policy: Policy, runs: Callable[[Job, Fleet], JobRun], fleet: Fleet, settings: ClusterSettings) -> Alone:
    """Simulate each job alone under a policy, on as few nodes of a group as hold the devices. Equal jobs are simulated once.

    Args:
        runs: function that creates the run of a job on a cluster.
    """

    @cache
    def seconds(job: Job, group: int, devices: int) -> float:
        nodes = fleet.groups[group]
        count = -(-devices // nodes.devices_per_node)
        if count > nodes.nodes or not job.may_use(nodes.device):
            return math.nan
        part = Fleet((nodes.resized(count),))
        return simulate([job], part, policy, lambda one: runs(one, part), settings).outcomes[0].jct_s

    def alone(job: Job, group: int, devices: int) -> float:
        limited = devices if "devices" in job.adapts else job.max_devices
        if limited and limited < job.min_devices:
            return math.nan
        return seconds(replace(job, name="alone", arrival_s=0.0, deadline_s=math.inf, max_devices=limited), group, devices)

    return alone
