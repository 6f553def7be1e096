"""Figures of schedules that can be told by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.simulate.metrics import estimated_fairness, metrics
from paceline.scheduling.simulate.schedule import ClusterSettings
from schedule_toys import FOUR, JOBS, job, simulated


def test_times_devices_energy_and_money() -> None:
    m = simulated().metrics
    assert (m.jobs, m.ended, m.mean_jct_s, m.median_jct_s, m.makespan_s) == (
        3,
        3,
        pytest.approx((100 + 140 + 180) / 3),
        140,
        200,
    )
    assert m.mean_wait_s == pytest.approx((0 + 90 + 80) / 3) and m.restarts_per_job == 0
    assert m.p99_jct_s == pytest.approx(140 + 0.98 * 40)
    held_s = 400 + 100 + 200
    assert m.device_hours_per_job == pytest.approx(held_s / 3600 / 3)
    assert m.utilisation == pytest.approx(held_s / 800)
    assert (m.energy_kwh, m.usd) == (pytest.approx(held_s / 3600 * 0.1), pytest.approx(held_s / 3600))
    assert m.decisions > 0 and 0 < m.decision_median_s <= m.decision_p99_s


def test_what_has_no_price_or_power_is_unknown() -> None:
    m = simulated(fleet=Fleet((NodeGroup.of("T4", 2, 2),))).metrics
    assert math.isnan(m.energy_kwh) and math.isnan(m.usd)
    two = Fleet((NodeGroup.of("T4", 2, 2, price=1.0), NodeGroup.of("K80", 1, 1)))
    assert simulated(job("a", 0, 4, 3600), fleet=two).metrics.usd == pytest.approx(4), (
        "an unused type without a price costs nothing"
    )


def test_fairness_by_hand() -> None:
    """a: alone for 10 s, one beside it for 10 s, two for 80 s: 2.7 jobs in the mean, a share of 4 / 2.7 devices; it held 4.

    It came first, so without later jobs it would have taken the same time. An elastic job could run on that share.
    """
    schedule = simulated().schedule
    rho = estimated_fairness(schedule, list(schedule.outcomes))
    assert rho[0] == pytest.approx(1)
    schedule.outcomes[0].job = replace(schedule.outcomes[0].job, adapts=frozenset({"devices"}))
    assert estimated_fairness(schedule, list(schedule.outcomes))[0] == pytest.approx(100 / (100 * 2.7))
    jobs = (10 * 2 + 80 * 3 + 50 * 2) / 140
    assert rho[1] == pytest.approx(140 / (50 * max(2 * jobs / 4, 1)))
    assert simulated(job("a", 0, 4, 9)).metrics.worst_fairness == pytest.approx(1)


def test_jobs_that_never_ended_count_apart() -> None:
    schedule = simulated().schedule
    schedule.outcomes[2].end_s = math.nan
    m = metrics(schedule)
    assert (m.jobs, m.ended, m.mean_jct_s) == (3, 2, pytest.approx(120))


def test_deadlines_that_were_kept_and_jobs_that_were_removed() -> None:
    schedule = simulated().schedule
    for outcome, deadline_s in zip(schedule.outcomes, (100.0, 149.0, math.inf), strict=True):
        outcome.job = replace(outcome.job, deadline_s=deadline_s)
    schedule.outcomes[2].removed, schedule.outcomes[2].end_s = "too late", math.nan
    m = metrics(schedule)
    assert (m.deadlines, m.met, m.removed, m.ended) == (2, 1, 1, 2)


def test_a_removed_job_counts_until_its_removal() -> None:
    """c holds 2 of 4 devices from 100 s to 200 s, then is removed; without b and a it is all there is."""
    schedule = simulated().schedule
    whole = metrics(schedule)
    schedule.outcomes[2].removed, schedule.outcomes[2].end_s = "limit", math.nan
    m = metrics(schedule)
    assert (m.makespan_s, m.utilisation) == (whole.makespan_s, whole.utilisation) and m.ended == 2
    only = metrics(replace(schedule, outcomes=schedule.outcomes[2:]))
    assert only.makespan_s == 200 - schedule.outcomes[2].job.arrival_s


def test_nothing_ended() -> None:
    schedule = simulated().schedule
    for outcome in schedule.outcomes:
        outcome.end_s = math.nan
    m = metrics(schedule)
    assert m.ended == 0 and math.isnan(m.mean_jct_s) and math.isnan(m.worst_fairness) and math.isnan(m.utilisation)


def test_restarts_hold_devices() -> None:
    slow = simulated(job("a", 0, 4, 100), settings=ClusterSettings(round_s=0, restart_s=20)).metrics
    assert slow.mean_jct_s == 120 and slow.utilisation == pytest.approx(1)


def test_the_toys_are_what_they_say() -> None:
    spans = [(o.job.name, s.start_s, s.end_s) for o in simulated().schedule.outcomes for s in o.spans]
    assert spans == [("a", 0, 100), ("b", 100, 150), ("c", 100, 200)] and len(JOBS) == 3 and FOUR.devices == 4


def test_the_worst_wait_is_that_longest_for_the_time_on_devices() -> None:
    worst = simulated(job("a", 0, 4, 100), job("b", 0, 4, 50), job("c", 0, 4, 100)).metrics.worst_wait
    assert (worst.name, worst.waited_s, worst.ran_s, worst.ratio) == ("b", 100, 50, 2)


def test_a_delay_of_a_round_and_a_start_is_not_unfair() -> None:
    """b waits 40 s for the next round, 5 times as long as it runs."""
    jobs = job("a", 0, 2, 80), job("b", 20, 2, 8)
    rounds = simulated(*jobs, settings=ClusterSettings(round_s=60, restart_s=0))
    assert rounds.metrics.worst_fairness == pytest.approx(6) and rounds.metrics.unfair_share == 0
    assert metrics(rounds.schedule).unfair_share == 0.5 and metrics(rounds.schedule).worst_wait.name == "b"
    assert not rounds.metrics.worst_wait.name and math.isnan(rounds.metrics.worst_wait.ratio)
