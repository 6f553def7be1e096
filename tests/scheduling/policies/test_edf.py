"""Earliest deadline first."""

from __future__ import annotations

from paceline.scheduling.policies.edf import edf
from scheduling_toys import SMALL, TabledRun, elastic, ends, rigid, simulated, state


def test_the_earliest_deadline_gets_all_it_can_use() -> None:
    jobs = [elastic("late", 80, deadline_s=200.0), elastic("never", 80), elastic("soon", 80, deadline_s=100.0)]
    end = ends(simulated(jobs, edf))
    assert end["soon"] < end["late"] < end["never"]
    decision = edf(state(jobs))
    assert decision.devices.tolist() == [0, 0, 8] and set(decision.reasons) == {0, 2}


def test_a_job_is_not_put_where_it_is_slower_unless_asked() -> None:
    job = elastic("a", 10, deadline_s=100.0)
    run = TabledRun(job, SMALL.types, {"T4": {1: 1.0, 4: 3.0, 8: 2.0}})
    assert edf(state([job], outlooks=[run])).devices.tolist() == [4]
    assert edf(state([job], outlooks=[run]), largest=True).devices.tolist() == [8]


def test_rigid_jobs_get_what_they_ask_for() -> None:
    jobs = [rigid("a", 10, 6, deadline_s=100.0), rigid("b", 10, 6, deadline_s=50.0), rigid("c", 10, 2)]
    assert edf(state(jobs)).devices.tolist() == [0, 6, 2]
