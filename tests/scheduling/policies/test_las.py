"""Least attained service: the moment of demotion, and who goes before whom."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.job import Job
from paceline.scheduling.policies.las import las
from scheduling_toys import FREE, Fleet, audit, ends, many_jobs, rigid, simulated

SHORT = partial(las, thresholds_s=(100.0,))


@given(st.integers(5, 8))
def test_a_job_is_demoted_when_its_devices_times_seconds_reach_the_threshold(devices: int) -> None:
    """The second goes before the first from then on."""
    schedule = simulated([rigid("long", 1000, devices), rigid("short", 7, 8, arrival_s=1.0)], SHORT)
    demoted = 100 / devices
    first, second = schedule.outcomes
    assert first.spans[0].end_s == second.start_s == pytest.approx(demoted)
    assert ends(schedule) == {"long": pytest.approx(1007), "short": pytest.approx(demoted + 7)}
    assert first.restarts == 1


def test_those_demoted_keep_the_order_of_their_demotion() -> None:
    one = Fleet.named("1x1xT4")
    schedule = simulated([rigid("a", 150, 1), rigid("b", 150, 1), rigid("c", 150, 1)], SHORT, one)
    assert ends(schedule) == {name: pytest.approx(end) for name, end in (("a", 350), ("b", 400), ("c", 450))}


@given(st.floats(0.1, 1e7), st.floats(1e-3, 50.0), st.integers(1, 8))
def test_the_moment_of_demotion_comes_whatever_the_rounding(arrival: float, restart: float, devices: int) -> None:
    jobs = [rigid("a", 500, devices, arrival), rigid("b", 500, 8, arrival)]
    settings = type(FREE)(round_s=0.0, restart_s=restart)
    schedule = simulated(jobs, SHORT, settings=settings)
    audit(schedule, jobs)
    assert len(schedule.decision_s) < 50


@given(many_jobs())
def test_nobody_starves(jobs: list[Job]) -> None:
    jobs = [rigid(job.name, 50.0, job.devices, job.arrival_s) for job in jobs]
    outcomes = simulated(jobs, SHORT).outcomes
    assert max(outcome.end_s for outcome in outcomes) <= max(job.arrival_s for job in jobs) + 50.0 * len(jobs) + 1e-6


def test_every_threshold_is_a_queue_of_its_own() -> None:
    """Each second of two jobs in turn: 10 s each, then 10 s more each, then the first to its end."""
    schedule = simulated([rigid("a", 100, 8), rigid("b", 100, 8)], partial(las, thresholds_s=(80.0, 160.0)))
    assert ends(schedule) == {"a": pytest.approx(120), "b": pytest.approx(200)}
    assert [span.start_s for span in schedule.outcomes[0].spans] == pytest.approx([0, 20, 40])


def test_one_that_does_not_fit_is_passed_over() -> None:
    schedule = simulated([rigid("a", 10, 5), rigid("b", 10, 5), rigid("c", 10, 3)], las)
    assert ends(schedule) == {"a": 10, "b": 20, "c": 10}
    assert np.isfinite([outcome.end_s for outcome in schedule.outcomes]).all()
