"""Knapsack of sizes: the prices lead to the same totals as dynamic programming, with little left for it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers import knapsack as module
from paceline.scheduling.policies.solvers.knapsack import Sizes, least_cost, least_total


def random_sizes(rng: np.random.Generator, kind: int) -> tuple[list[Ints], list[Array]]:
    """Rigid jobs of few kinds, jobs of any costs, and jobs whose gain falls with their devices."""
    options, costs = [], []
    for _ in range(rng.integers(1, 20)):
        if kind == 0:
            options.append(np.array([0, rng.choice([1, 1, 2, 4, 8, 16])]))
            costs.append(np.array([0, -rng.choice([0.1, 0.2, 0.35]) * options[-1][1] ** 0.75]))
        elif kind == 1:
            options.append(np.unique(np.append(0, rng.integers(1, 24, rng.integers(1, 6)))))
            costs.append(np.append(0, -rng.random(len(options[-1]) - 1)))
        else:
            options.append(np.arange(rng.integers(2, 20)))
            costs.append(1 / (options[-1] ** rng.uniform(0.5, 0.95) + 1e-3))
    return options, costs


def total(options: list[Ints], costs: list[Array], devices: Ints) -> float:
    return sum(float(cost[sizes == size][0]) for sizes, cost, size in zip(options, costs, devices, strict=True))


@given(st.lists(st.lists(st.floats(0.1, 10), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 6), st.randoms())
def test_dynamic_programming_finds_the_best_of_all(costs: list[list[float]], capacity: int, chance: object) -> None:
    options = [np.array([0, *sorted(chance.sample(range(1, 9), len(row) - 1))]) for row in costs]  # type: ignore[attr-defined]
    devices = least_cost(options, [np.array(row) for row in costs], capacity)
    price = [dict(zip(sizes.tolist(), row, strict=True)) for sizes, row in zip(options, costs, strict=True)]
    brute = min(
        sum(row[size] for row, size in zip(price, choice, strict=True)) for choice in product(*price) if sum(choice) <= capacity
    )
    assert devices.sum() <= capacity
    assert sum(row[size] for row, size in zip(price, devices.tolist(), strict=True)) == pytest.approx(brute)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_prices_lead_to_the_least_total(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    monkeypatch.setattr(module, "DIRECT", -1)
    rng = np.random.default_rng(kind)
    for _ in range(120):
        options, costs = random_sizes(rng, kind)
        capacity = int(rng.integers(0, 60))
        expected, found = least_cost(options, costs, capacity), least_total(Sizes.of(options, costs), capacity)
        assert found.sum() <= capacity
        assert total(options, costs, found) == pytest.approx(total(options, costs, expected), rel=1e-12)
        assert kind != 1 or (found == expected).all()  # other kinds have equal jobs


def test_the_first_of_equal_jobs_are_served() -> None:
    sizes = Sizes.of([np.array([0, 1])] * 500, [np.array([0.0, -0.1])] * 500)
    assert np.flatnonzero(least_total(sizes, 300)).tolist() == list(range(300))


def test_few_jobs_are_left_to_dynamic_programming(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def counted(options: list[Ints], costs: list[Array], capacity: int) -> Ints:
        left.append(sum(map(len, options)) * capacity)
        return least_cost(options, costs, capacity)

    rng, sizes = np.random.default_rng(0), np.arange(33)
    costs = [-rng.uniform(0.1, 1) * sizes ** rng.uniform(0.5, 0.9) for _ in range(300)]
    monkeypatch.setattr(module, "least_cost", counted)
    devices = least_total(Sizes.of([sizes] * 300, costs), 2000)
    assert devices.sum() <= 2000
    assert max(left, default=0) < 33 * 300 * 2000 / 1000


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 7, 8, 100])
def test_bundles_add_up_to_every_number(count: int) -> None:
    parts = module._bundles(count)
    assert {sum(part for bit, part in enumerate(parts) if chosen >> bit & 1) for chosen in range(1 << len(parts))} == set(
        range(count + 1)
    )
