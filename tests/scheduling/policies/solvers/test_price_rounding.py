"""Allocation from prices: always legal, and close to the bound that the prices prove."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.scheduling.policies.solvers.device_prices import DevicePrices
from paceline.scheduling.policies.solvers.price_rounding import rounded
from paceline.scheduling.policies.solvers.useful_choices import Choices


def random_choices(jobs: int, seed: int) -> Choices:
    """Jobs on 1, 2, 4 or 8 devices of three types, of which later ones are faster."""
    rng = np.random.default_rng(seed)
    devices, kind = np.tile([1, 2, 4, 8] * 3, jobs), np.tile(np.repeat(np.arange(3), 4), jobs)
    power = np.repeat(rng.uniform(0.5, 0.95, jobs), 12)
    return Choices(np.repeat(np.arange(jobs), 12), devices, kind, -((kind + 1.0) * devices**power), np.zeros(12 * jobs, bool))


@pytest.mark.parametrize("capacity", [(300, 200, 100), (40, 500, 0), (0, 0, 3), (5000, 5000, 5000)])
@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0])
def test_it_is_legal_at_any_price_and_good_at_the_best_one(capacity: tuple[int, ...], factor: float) -> None:
    choices, there = random_choices(200, 0), np.array(capacity)
    prices = DevicePrices(choices.job, choices.devices, choices.type_index, choices.cost, there)
    assert prices.cut(1e-5, math.inf)
    rows = rounded(choices, factor * prices.best, there)
    assert np.bincount(choices.job[rows]).max(initial=0) <= 1
    assert (np.bincount(choices.type_index[rows], choices.devices[rows], 3) <= there).all()
    if factor == 1.0:
        assert float(choices.cost[rows].sum()) <= 0.999 * prices.bound
    assert len(rounded(choices.of(rows[:0]), prices.best, there)) == 0
