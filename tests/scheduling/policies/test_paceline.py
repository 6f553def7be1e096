"""Paceline's policy: short jobs first, devices where they pay, no move that does not."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.paceline import UNKNOWN_S, WIDE, paceline, work_left_s
from paceline.scheduling.simulate.run import DurationRun
from scheduling_toys import SMALL, audit, elastic, rigid, simulated, state

TWO = Fleet.named("1x4xT4 + 1x4xV100")


def test_one_job_gets_all_and_two_equal_ones_a_half() -> None:
    assert paceline(state([elastic("a", 1000)])).devices.tolist() == [8]
    assert paceline(state([elastic("a", 1000), elastic("b", 1000)])).devices.tolist() == [4, 4]


def test_the_shorter_job_gets_more_and_alone_the_weight_decides() -> None:
    short, long = paceline(state([elastic("a", 2000), elastic("b", 20000)])).devices
    assert short > long > 0
    light, heavy = paceline(state([elastic("a", 2000), elastic("b", 2000, weight=4)])).devices
    assert light < heavy


def test_a_move_must_pay_for_its_restart() -> None:
    jobs = [elastic("a", 40)]
    held = {"devices": np.array([4]), "type_index": np.array([0])}
    assert paceline(state(jobs, **held, restart_s=1000.0)).devices.tolist() == [4]
    assert paceline(state(jobs, **held, restart_s=0.0)).devices.tolist() == [8]


def test_a_job_that_was_often_resized_pays_its_restart_in_less_time() -> None:
    """Twice the devices for a restart of 300 s: it pays where devices are kept for 900 s, not where they were for 300 s."""
    held = {"devices": np.array([4]), "type_index": np.array([0]), "run_s": np.array([[3000.0]]), "restart_s": 300.0}
    assert paceline(state([elastic("a", 1e6)], **held, restarts=np.array([2]))).devices.tolist() == [8]
    assert paceline(state([elastic("a", 1e6)], **held, restarts=np.array([9]))).devices.tolist() == [4]


def test_rigid_jobs_get_what_they_ask_for_or_nothing() -> None:
    jobs = [rigid("a", 500, 5), rigid("b", 100, 5), elastic("c", 1000)]
    decision = paceline(state(jobs))
    assert decision.devices.tolist() == [0, 5, 3]
    over_types = paceline(state([rigid("a", 500, 3), rigid("b", 100, 3, device_types=("T4",))], TWO))
    assert over_types.devices.tolist() == [3, 3] and over_types.type_index.tolist() == [1, 0]


def test_what_is_unknown_counts_as_long_as_it_has_run() -> None:
    unknown = DurationRun(rigid("a", 900))
    assert work_left_s(unknown.outlook, 0, 1, 0.0) == UNKNOWN_S
    assert [work_left_s(unknown.outlook, 0, 1, held) for held in (300.0, 301.0)] == [UNKNOWN_S, 4 * UNKNOWN_S]
    assert 5000 <= work_left_s(unknown.outlook, 0, 1, 5000.0) <= 20000
    assert work_left_s(DurationRun(rigid("a", 900, 2), durations_known=True).outlook, 0, 2, 5000.0) == 1800


def test_a_wide_range_is_not_believed() -> None:
    run = DurationRun(rigid("a", 900), durations_known=True)
    assert work_left_s(run.outlook, 0, 1, 0.0) == 900
    run.relative_spread = lambda: WIDE  # type: ignore[method-assign]
    assert work_left_s(run.outlook, 0, 1, 0.0) == UNKNOWN_S


def test_a_smaller_job_makes_room_for_one_that_would_be_scattered() -> None:
    jobs = [rigid("a", 1000, 2), rigid("b", 100, 2), rigid("c", 100, 2), rigid("d", 1000, 2), rigid("whole", 500, 4, 200)]
    a, *_, d, whole = simulated(jobs, paceline).outcomes
    assert len(whole.spans[0].placement) == 1 and whole.start_s == 200
    assert len(a.spans) + len(d.spans) == 3, "one of them moved"


@pytest.mark.parametrize("fleet", [SMALL, TWO])
def test_every_job_ends(fleet: Fleet) -> None:
    jobs = [elastic(f"e{index}", 300.0 * (index + 1), 40.0 * index) for index in range(6)]
    jobs += [rigid(f"r{index}", 200.0, 3, 50.0 * index) for index in range(4)]
    schedule = simulated(jobs, paceline, fleet)
    audit(schedule, jobs)
    assert all(outcome.end_s > 0 for outcome in schedule.outcomes)
