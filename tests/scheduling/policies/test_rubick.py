"""``scheduling.policies.rubick``: slopes over execution plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import ELASTIC, Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.rubick import rubick
from paceline.scheduling.state import Decision

JOB = replace(ELASTIC, devices=2, adapts=frozenset({"devices", "strategy"}))


def power(exponent: float) -> Known:
    return Known(lambda kind, devices: devices**exponent)


def held(
    devices: list[int], outlooks: list[Known], jobs: Job | list[Job] = JOB, fleet: str = "2x8xA100", **others: object
) -> Decision:
    counts = np.array(devices)
    return rubick(state(fleet, outlooks, jobs, devices=counts, type_index=np.where(counts > 0, 0, -1), **others))


def test_what_is_left_goes_to_the_steepest() -> None:
    assert held([0, 0], [power(0.9), power(0.2)]).devices.tolist() == [8, 8]
    assert held([0, 0], [power(0.9), power(0.2)], fleet="1x8xA100").devices.tolist() == [4, 4]
    assert held([0, 0, 0], [power(0.9), power(0.2), power(0.2)], fleet="1x8xA100").devices.tolist() == [4, 2, 2]


def test_a_new_job_takes_from_the_flattest() -> None:
    assert held([4, 4, 0], [power(0.3), power(0.9), power(0.5)], fleet="1x8xA100").devices.tolist() == [2, 4, 2]


def test_nobody_falls_below_its_request_and_the_new_job_waits() -> None:
    decision = held([2, 2, 0], [power(0.1), power(0.1), power(1.0)], fleet="1x4xT4")
    assert decision.devices.tolist() == [2, 2, 0]


def test_no_job_overtakes_one_that_waits() -> None:
    """The second is small and would fit."""
    jobs = [replace(JOB, name="a", devices=4), replace(JOB, name="b", devices=8), replace(JOB, name="c", devices=1)]
    assert held([4, 0, 0], [power(0.5)] * 3, jobs, "1x8xA100").devices.tolist() == [8, 0, 0]


def test_devices_are_traded_from_flat_to_steep() -> None:
    assert held([4, 2], [power(0.1), power(1.0)], fleet="1x6xA100").devices.tolist() == [2, 4]


def test_one_that_just_restarted_is_left_alone() -> None:
    """100 s of 3,600 are 2.8 %, twice as much is more than may be lost, 3 %."""
    outlooks = [power(0.1), power(1.0)]
    for restarts, devices in ((0, [2, 4]), (1, [4, 2])):
        decision = held([4, 2], outlooks, fleet="1x6xA100", restart_s=100.0, restarts=np.array([restarts, 0]))
        assert decision.devices.tolist() == devices
    for percent, devices in ((2.9, [2, 4]), (3.1, [4, 2])):
        decision = held([4, 2], outlooks, fleet="1x6xA100", restart_s=36.0 * percent, restarts=np.array([0, 0]))
        assert decision.devices.tolist() == devices


def test_sizes_at_which_no_plan_runs_are_passed_over() -> None:
    """Four devices hold no plan; eight do."""
    plans = Known(lambda kind, devices: np.where(devices == 4, 0.0, devices))
    assert held([0], [plans], fleet="1x8xA100").devices.tolist() == [8]


def test_a_new_job_goes_to_its_fastest_type() -> None:
    twice = Known(lambda kind, devices: devices * (1.0, 2.0)[kind])
    decision = rubick(state("1x4xT4 + 1x4xA100", [twice, twice], JOB))
    assert decision.type_index.tolist() == [1, 1]
    decision = rubick(state("1x4xT4 + 1x4xA100", [twice] * 3, JOB))
    assert decision.type_index.tolist() == [1, 1, 0]


@pytest.mark.parametrize("fleet", ["1x1xT4", "1x4xT4"])
def test_a_rigid_job_gets_its_request_or_waits(fleet: str) -> None:
    assert rubick(state(fleet, [power(1.0)], Job(name="rigid", devices=2, duration_s=1.0))).devices.tolist() in ([0], [2])


def test_many_jobs_hold_all_devices_and_no_more() -> None:
    rng = np.random.default_rng(0)
    outlooks = [power(exponent) for exponent in rng.uniform(0.1, 1.0, 100)]
    moment = state("10x4xT4 + 10x8xA100", outlooks, JOB)
    decision = rubick(moment)
    used = np.bincount(decision.type_index[decision.devices > 0], decision.devices[decision.devices > 0], 2)
    assert used.tolist() == moment.capacity.tolist()
