"""Prices of devices: the bound is the least total of the linear program, which another solver finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog

from paceline.scheduling.policies.solvers.device_prices import DevicePrices

JOBS = 60


def relaxed(capacity: tuple[int, int], seed: int) -> tuple[DevicePrices, float]:
    """Random choices of two types, and the least total if parts of choices may be taken."""
    rng = np.random.default_rng(seed)
    job, devices, types = np.repeat(np.arange(JOBS), 4), np.tile([1, 2, 1, 4], JOBS), np.tile([0, 0, 1, 1], JOBS)
    cost = -rng.uniform(0.5, 1, len(job)) * devices**0.7
    table = np.concatenate([job == np.arange(JOBS)[:, None], (types == np.arange(2)[:, None]) * devices])
    least = linprog(cost, A_ub=table, b_ub=[*np.ones(JOBS), *capacity], bounds=(0, 1)).fun
    return DevicePrices(job, devices, types, cost, np.array(capacity)), float(least)


@pytest.mark.parametrize("capacity", [(30, 50), (30, 5000), (5000, 5000), (1, 0)])
def test_cutting_planes_reach_the_linear_program(capacity: tuple[int, int]) -> None:
    prices, least = relaxed(capacity, 0)
    assert prices.cut(1e-9, math.inf)
    assert prices.bound == pytest.approx(least, rel=1e-8)
    assert prices.best.min() >= 0


@pytest.mark.parametrize("capacity", [(30, 50), (20, 90), (30, 5000)])
def test_newton_steps_come_close_and_never_promise_too_much(capacity: tuple[int, int]) -> None:
    for seed in range(5):
        prices, least = relaxed(capacity, seed)
        prices.smooth()
        assert prices.bound <= least + 1e-9
        assert prices.bound == pytest.approx(least, rel=5e-3)


def test_no_prices_are_found_when_time_is_over() -> None:
    assert not relaxed((30, 50), 0)[0].cut(1e-9, -math.inf)
