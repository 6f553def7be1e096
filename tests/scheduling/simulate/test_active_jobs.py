"""What happens to a job on its devices: starts, moves, interference, ends, and nodes that go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.policies.solvers.placement_rule import placing
from paceline.scheduling.simulate.active_jobs import ActiveJobs
from paceline.scheduling.simulate.job_table import DELAY, RESTARTS, SPEED, TO_NEXT
from paceline.scheduling.simulate.schedule import ClusterSettings, JobOutcome
from paceline.scheduling.state import Decision
from scheduling_toys import SMALL, audit, ends, rigid, runs, simulated


def active(*jobs: Job, fleet: Fleet = SMALL, **settings: Any) -> ActiveJobs:
    """Jobs that have just come."""
    made = ActiveJobs(fleet, ClusterSettings(**settings), {job.name: JobOutcome(job) for job in jobs}, runs(fleet))
    made.come(jobs)
    return made


def gives(*devices: int, **also: Any) -> Decision:
    return Decision(devices=np.array(devices), type_index=np.zeros(len(devices), np.int64), **also)


def test_a_start_costs_its_restart_and_the_second_is_counted() -> None:
    jobs = active(rigid("a", 100, 2), rigid("b", 100, 2), restart_s=30.0)
    jobs.carry_out(gives(2, 0))
    assert jobs.columns[DELAY].tolist() == [30, 0] and jobs.free.tolist() == [2, 4] and jobs.placements == [((0, 2),), ()]
    assert not jobs.pass_to(30.0) and jobs.pass_to(50.0)
    jobs.carry_out(gives(0, 2))
    assert jobs.columns[SPEED].tolist() == [0, 1] and jobs.columns[TO_NEXT].tolist() == [80, 100]
    jobs.pass_to(60.0)
    jobs.carry_out(gives(2, 2))
    assert jobs.columns[RESTARTS].tolist() == [1, 0] and jobs.free.sum() == 4
    first, second = jobs.outcomes["a"].spans
    assert (first.start_s, first.end_s, second.start_s) == (0, 50, 60)


def test_those_whose_moment_has_come_leave_and_their_devices_are_free() -> None:
    jobs = active(rigid("a", 100, 4), rigid("b", 100, 2), rigid("c", 130, 2), restart_s=0.0)
    jobs.carry_out(gives(4, 2, 2))
    crossing, moments = jobs.next_crossing()
    jobs.pass_to(crossing)
    jobs.cross(moments)
    assert [job.name for job in jobs.jobs] == ["c"] and (jobs.ended, jobs.free.sum()) == (2, 6)
    assert (jobs.outcomes["a"].end_s, jobs.outcomes["b"].end_s) == (100, 100) and np.isnan(jobs.outcomes["c"].end_s)


def test_a_policy_that_gives_what_is_not_free_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="b: the policy gave 4 devices that are not free"):
        active(rigid("a", 1, 6), rigid("b", 1, 4)).carry_out(gives(6, 4))


@pytest.mark.parametrize("free", [True, False])
def test_a_job_that_moves_in_the_same_shape_restarts_only_where_moves_cost(free: bool) -> None:
    """The largest job gets a whole node, so the smallest moves to the other."""
    jobs = active(rigid("a", 100, 1), rigid("b", 100, 3), rigid("c", 100, 4), restart_s=30.0, moves_free=free)
    jobs.carry_out(gives(1, 3, 0, rule="most_free"))
    jobs.pass_to(40.0)
    assert jobs.placements == [((0, 1),), ((1, 3),), ()]
    jobs.carry_out(gives(1, 3, 4, repack=True))
    assert jobs.placements == [((1, 1),), ((1, 3),), ((0, 4),)] and not jobs.free.any()
    assert jobs.columns[RESTARTS, 0] == (0 if free else 1) and len(jobs.outcomes["a"].spans) == 2


def test_jobs_on_several_nodes_slow_one_another_where_they_share_one() -> None:
    """The third is on one node, or on two that others share."""
    for devices, end in ((2, 90), (4, 100)):
        jobs = [rigid("a", 90, 6), rigid("b", 90, 6), rigid("c", 90, devices)]
        settings = ClusterSettings(round_s=0, restart_s=0, interference=0.1)
        schedule = simulated(jobs, placing(fifo, "most_free"), Fleet.named("4x4xT4"), settings)
        assert ends(schedule) == dict.fromkeys("abc", pytest.approx(end))


@pytest.mark.parametrize("round_s", [0.0, 1000.0])
def test_a_job_that_ended_slows_no_other(round_s: float) -> None:
    """Two jobs share the second of three nodes until one ends."""
    jobs = [rigid("a", 100, 6), rigid("b", 1000, 6)]
    settings = ClusterSettings(round_s=round_s, restart_s=0, interference=0.5)
    schedule = simulated(jobs, fifo, Fleet.named("3x4xT4"), settings)
    assert ends(schedule) == {"a": pytest.approx(200), "b": pytest.approx(200 + 900)}


@pytest.mark.parametrize(("planned", "lost"), [(True, 0.0), (False, 50.0)])
@pytest.mark.parametrize("round_s", [0.0, 75.0])
def test_a_failure_costs_the_work_since_the_last_checkpoint(planned: bool, lost: float, round_s: float) -> None:
    fleet = Fleet.named("1x4xT4", [Outage(0, 150.0, 300.0, planned)])
    settings = ClusterSettings(round_s=round_s, restart_s=0.0, checkpoint_s=100.0)
    schedule = simulated([rigid("a", 400, 4)], fifo, fleet, settings)
    audit(schedule, [schedule.outcomes[0].job])
    assert schedule.outcomes[0].end_s == pytest.approx(300 + 250 + lost) and schedule.outcomes[0].restarts == 1
