"""Marginal gain: no single device would save more elsewhere."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.policies.optimus import optimus
from scheduling_toys import elastic, rigid, state


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=8))
def test_no_device_would_save_more_time_with_another_job(steps: list[int]) -> None:
    moment = state([elastic(f"{i}", work) for i, work in enumerate(steps)])
    devices = optimus(moment).devices
    assert devices.sum() == 8 and devices.min() >= 1
    left = np.array([outlook.seconds_left(0, 9) for outlook in moment.outlooks])
    jobs = np.arange(len(steps))
    with np.errstate(invalid="ignore"):
        gains = left[jobs, devices] - np.append(left[:, :9], np.full((len(jobs), 1), np.inf), 1)[jobs, devices + 1]
        losses = left[jobs, np.maximum(devices - 1, 1)] - left[jobs, devices]
    for giver in jobs[devices > 1]:
        assert gains[np.isfinite(gains)].max(initial=-np.inf) <= losses[giver] + 1e-9


def test_more_jobs_than_devices_are_served_as_they_came() -> None:
    assert optimus(state([elastic(f"{i}", 9) for i in range(10)])).devices.tolist() == [1] * 8 + [0] * 2


def test_a_rigid_job_gets_what_it_asks_for_or_waits() -> None:
    jobs = [elastic("a", 100), rigid("b", 10, 4), rigid("c", 10, 4), elastic("d", 100)]
    assert optimus(state(jobs)).devices.tolist() == [2, 4, 0, 2]


def test_where_the_work_left_is_unknown_the_time_of_progress_counts() -> None:
    moment = state([elastic("a", 10), elastic("b", 10**6)])
    for outlook in moment.outlooks:
        outlook.seconds_left = lambda device_type, most: np.full(most + 1, np.nan)  # type: ignore[method-assign]
    assert optimus(moment).devices.tolist() == [4, 4]
