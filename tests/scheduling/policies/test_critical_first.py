"""``scheduling.policies.critical_first``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.critical_first import critical_first, shortest_makespan_s
from paceline.scheduling.policies.solvers.share_programs import highest_level
from paceline.scheduling.policies.solvers.time_shares import ShareDemand

RIGID = Job(name="rigid", steps=1)


def job(left: float, *speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=left)


def test_the_shortest_goes_first_where_none_is_critical() -> None:
    now = state("1x1xT4", [job(300, 1.0), job(100, 1.0), job(200, 1.0)], RIGID)
    assert critical_first(now).devices.tolist() == [0, 1, 0]


def test_a_job_that_decides_the_makespan_goes_before_shorter_ones() -> None:
    """1,000 s on the A100 are as long as all the rest together: it may not wait."""
    now = state("1x1xT4 + 1x1xA100", [job(1000, 0.1, 1.0), *[job(100, 0.9, 1.0)] * 4], RIGID)
    decision = critical_first(now)
    assert (decision.devices[0], decision.type_index[0]) == (1, 1)
    assert decision.reasons == {0: "it decides the makespan"}
    assert critical_first(now, critical=2.0).devices[0] == 0


def test_each_type_goes_to_those_who_gain_most_by_it() -> None:
    now = state("1x1xT4 + 1x1xA100", [job(100, 1.0, 1.1), job(100, 0.2, 1.1)], RIGID)
    assert critical_first(now, critical=2.0).type_index.tolist() == [0, 1]


def test_all_devices_work_and_none_twice() -> None:
    draw = np.random.default_rng(0)
    jobs = [replace(RIGID, name=str(n), devices=int(draw.choice([1, 2, 4]))) for n in range(30)]
    now = state("8x1xT4 + 4x1xA100", [job(*draw.uniform(1, 9, 3)) for _ in jobs], jobs)
    decision = critical_first(now)
    held = decision.devices > 0
    assert np.bincount(decision.type_index[held], decision.devices[held]).tolist() == [8, 4]
    assert set(decision.devices[held] - now.requested[held]) == {0}


def test_jobs_that_cannot_run_wait() -> None:
    assert critical_first(state("1x1xT4", [job(1, 0.0)], RIGID)).devices.tolist() == [0]


def test_a_critical_job_that_runs_is_not_stopped_where_starts_cost_time() -> None:
    """It has come below the limit of the makespan, and a shorter job waits."""
    now = state("1x1xT4", [job(500, 1.0), job(400, 1.0)], RIGID)
    running = {"devices": np.array([1, 0]), "type_index": np.array([0, -1]), "memory": (now.jobs[0].name,)}
    for restart_s, devices in ((30.0, [1, 0]), (0.0, [0, 1])):
        decision = critical_first(replace(now, restart_s=np.full(2, restart_s), **running))
        assert decision.devices.tolist() == devices


@pytest.mark.parametrize("longest", [40.0, 4000.0])
def test_the_makespan_is_that_of_the_linear_program_whether_one_job_decides_it_or_all(longest: float) -> None:
    rng = np.random.default_rng(4)
    outlooks = [job(longest, 1.0, 3.0), *(job(float(left), 1.0, float(rng.uniform(1, 3))) for left in rng.uniform(30, 300, 20))]
    demand = ShareDemand.of(state("2x1xT4 + 3x1xA100", outlooks, RIGID))
    level, _ = highest_level(demand.limits, demand.speed / demand.left[:, None])
    assert shortest_makespan_s(demand, demand.left) == pytest.approx(1 / level)
