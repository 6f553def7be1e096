"""``scheduling.fairness``: completion times beside those on a share of the cluster alone."""

from __future__ import annotations

import math

import pytest

from cluster_states import ELASTIC
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.simulate.fairness import Fairness, alone_under, finish_time_fairness, mean_jobs
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome

FLEET = Fleet.named("2x4xT4 + 1x8xA100")


def schedule(job: Job, rivals: int, end_s: float = 300.0, fleet: Fleet = FLEET) -> ClusterSchedule:
    active = ((0.0, rivals), (60.0, rivals), (120.0, rivals + 2), (240.0, rivals - 2), (300.0, 50))
    return ClusterSchedule(fleet=fleet, outcomes=(JobOutcome(job, end_s),), decision_s=(), active=active)


def test_the_mean_of_jobs_is_over_the_rounds_of_the_job() -> None:
    assert mean_jobs(schedule(ELASTIC, 5)) == {"elastic": 5.0}
    assert mean_jobs(schedule(ELASTIC, 5, end_s=119.0)) == {"elastic": 5.0}
    assert mean_jobs(schedule(ELASTIC, 5, end_s=math.nan)) == {"elastic": (5 + 5 + 7 + 3 + 50) / 5}


def test_a_share_between_whole_numbers_takes_the_time_between() -> None:
    """16 devices over 5 jobs: 3.2. T4 takes 1000 / n seconds, the A100 a tenth; both have eight devices."""
    ratios = finish_time_fairness(schedule(ELASTIC, 5), lambda job, group, devices: 1000 / devices / (1, 10)[group])
    slow = 1000 / 3 + 0.2 * (1000 / 4 - 1000 / 3)
    assert ratios.ratio["elastic"] == pytest.approx(300 / (slow * 1.1 / 2))


def test_below_one_device_the_time_grows() -> None:
    ratios = finish_time_fairness(schedule(ELASTIC, 32), lambda job, group, devices: 100.0 if devices == 1 else math.nan)
    assert ratios.worst == pytest.approx(300 / 200)
    assert ratios.unfair_share == 1.0


def test_a_rigid_job_alone_waits_for_its_share_and_types_that_are_too_small_do_not_count() -> None:
    rigid = Job(name="rigid", devices=8, duration_s=1.0)
    ratios = finish_time_fairness(schedule(rigid, 4), lambda job, group, devices: 100.0 if group else math.nan)
    assert ratios.ratio == {"rigid": pytest.approx(300 / 200)}


def test_of_no_job_nothing_is_known() -> None:
    none = Fairness({})
    assert math.isnan(none.worst)
    assert math.isnan(none.unfair_share)


def test_alone_is_a_simulation_of_the_job_alone() -> None:
    rigid = Job(name="rigid", devices=6, duration_s=100.0, arrival_s=77.0)
    alone = alone_under(fifo, lambda job, fleet: DurationRun(job), FLEET, ClusterSettings(restart_s=30.0))
    assert alone(rigid, 0, 6) == pytest.approx(130.0)
    assert math.isnan(alone(rigid, 0, 12))
