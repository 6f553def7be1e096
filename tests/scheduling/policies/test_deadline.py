"""Deadlines: what is admitted is kept, and what is not is told why."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.job import Job
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.simulate.schedule import ClusterSettings
from scheduling_toys import audit, elastic, ends, many_jobs, rigid, simulated, state


@given(many_jobs(deadlines=True), st.sampled_from([0.0, 5.0]))
def test_what_is_admitted_is_kept(jobs: list[Job], restart_s: float) -> None:
    """With exact speeds and free restarts to the last; with costly ones at least all are ended or told."""
    schedule = simulated(jobs, deadline, settings=ClusterSettings(round_s=0.0, restart_s=restart_s))
    audit(schedule, jobs, removes=True)
    for outcome in schedule.outcomes:
        assert bool(outcome.removed) == np.isnan(outcome.end_s)
        assert restart_s or outcome.removed or outcome.end_s <= outcome.job.deadline_s + 1e-6


def test_a_deadline_that_no_cluster_keeps_is_refused_at_once() -> None:
    schedule = simulated([elastic("a", 1000, deadline_s=100.0), elastic("b", 100, deadline_s=100.0)], deadline)
    a, b = schedule.outcomes
    assert a.removed == "its deadline is too soon for all devices" and a.removed_s == 0 and not a.spans
    assert b.met and not b.removed


def test_a_job_that_would_make_others_late_is_refused() -> None:
    jobs = [elastic("first", 400, deadline_s=90.0), elastic("second", 400, arrival_s=1.0, deadline_s=85.0)]
    first, second = simulated(jobs, deadline).outcomes
    assert first.met and second.removed == "what others were promised leaves it too little"


def test_of_those_that_come_at_once_as_many_as_fit_are_admitted_or_none() -> None:
    jobs = [elastic(f"{i}", work, deadline_s=100.0) for i, work in enumerate((200, 200, 400))]
    assert [outcome.met for outcome in simulated(jobs, deadline).outcomes] == [True, True, False]
    none = simulated(jobs, partial(deadline, together=True)).outcomes
    assert [outcome.met for outcome in none] == [False] * 3 and all("came with it" in outcome.removed for outcome in none)


def test_jobs_without_a_deadline_live_of_what_is_left() -> None:
    end = ends(simulated([elastic("whenever", 100), rigid("due", 50, 6, deadline_s=51.0)], deadline))
    assert end["due"] == 50 and np.isfinite(end["whenever"])


def test_a_size_is_kept_where_growth_would_not_pay() -> None:
    jobs, held = [elastic("a", 10000)], {"devices": np.array([7]), "type_index": np.array([0])}
    assert deadline(state(jobs, **held), horizon_s=60.0).devices.tolist() == [7]
    assert deadline(state(jobs, **held), horizon_s=6000.0).devices.tolist() == [8]


@pytest.mark.parametrize("late_s", [100.0, 2000.0])
def test_one_that_was_admitted_and_is_late_goes_on(late_s: float) -> None:
    moment = state([elastic("a", 1000, deadline_s=50.0)], time_s=late_s, memory=("a",))
    decision = deadline(moment)
    assert not decision.removed and decision.devices.tolist() == [8]
