"""Dual prices of pooled resources."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.game.core import blocking, least_core
from paceline.market.game.game import Game
from paceline.market.prices.dual_prices import LinearProduction


@st.composite
def productions(draw: st.DrawFn) -> LinearProduction:
    players, resources, activities = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))

    def table(rows: int, columns: int, least: int) -> list[list[int]]:
        row = st.lists(st.integers(least, 9), min_size=columns, max_size=columns)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    return LinearProduction(
        [f"site{i}" for i in range(players)],
        draw(st.lists(st.integers(-3, 9), min_size=activities, max_size=activities)),
        [[use or 1 for use in row] if not i else row for i, row in enumerate(table(resources, activities, 0))],
        table(players, resources, 0),
    )


def by_corners(value: np.ndarray, use: np.ndarray, pooled: np.ndarray) -> float:
    """The best corner of the plans: every choice of tight constraints, each solved."""
    count = len(value)
    rows, limits = np.vstack([use, -np.eye(count)]), np.append(pooled, np.zeros(count))
    best = 0.0
    for tight in combinations(range(len(rows)), count):
        matrix = rows[list(tight)]
        if abs(np.linalg.det(matrix)) > 1e-9:
            plan = np.linalg.solve(matrix, limits[list(tight)])
            if (rows @ plan <= limits + 1e-9).all():
                best = max(best, float(value @ plan))
    return best


@given(productions())
def test_prices_are_in_the_core(production: LinearProduction) -> None:
    found = production.prices()
    game = production.game()
    assert blocking(game, found.shares, tolerance=1e-8) == ()
    assert found.shares.sum() == pytest.approx(found.worth, abs=1e-8)
    assert found.worth == pytest.approx(game.value(game.everyone))
    assert (found.prices >= 0).all()
    # Feasible for the dual: no activity is worth more than what it uses.
    assert (found.prices @ production.use >= production.value - 1e-8).all()
    assert (production.use @ found.plan <= production.resources.sum(axis=0) + 1e-8).all()
    assert (found.lowest <= found.prices + 1e-7).all()
    assert (found.prices <= found.highest + 1e-7).all()
    if found.unique:
        has = production.resources.sum(axis=0) > 0
        assert found.lowest[has] == pytest.approx(found.highest[has], abs=1e-5)


@given(productions())
def test_worth_is_the_best_corner(production: LinearProduction) -> None:
    for mask in {1, 1 << len(production.players) >> 1, (1 << len(production.players)) - 1}:
        members = [bool(mask >> i & 1) for i in range(len(production.players))]
        best = by_corners(production.value, production.use, production.resources[members].sum(axis=0))
        assert production.worth(mask) == pytest.approx(best, abs=1e-8)


def test_gloves_are_one_activity_of_two_resources() -> None:
    found = LinearProduction(["left", "right", "other"], [1], [[1], [1]], [[1, 0], [0, 1], [0, 1]]).prices()
    assert found.prices == pytest.approx([1, 0])
    assert found.shares == pytest.approx([1, 0, 0])
    assert found.unique
    assert (found.worth, found.plan.tolist()) == (1, [1])


def test_a_degenerate_optimum_says_between_which_prices_one_may_choose() -> None:
    found = LinearProduction(["left", "right"], [1], [[1], [1]], [[1, 0], [0, 1]]).prices()
    assert not found.unique
    assert found.lowest == pytest.approx([0, 0], abs=1e-8)
    assert found.highest == pytest.approx([1, 1])
    assert found.shares.sum() == pytest.approx(1)


def test_a_type_that_trains_faster_costs_more() -> None:
    # A V100 does 1 job an hour of kind 0 and 1 of kind 1; an A100 3 of kind 0 and 2 of kind 1. Of kind 0 there are 30.
    # The A100s do kind 0, whose demand binds: 10 hours of them. The rest does kind 1: a V100-hour is worth 1, an A100-hour 2,
    # and a job of kind 0 the 1 that it brings less the 2/3 that its third of an hour costs.
    use = [[1, 0, 1, 0], [0, 1 / 3, 0, 1 / 2], [1, 1, 0, 0]]
    found = LinearProduction(["old", "new"], [1, 1, 1, 1], use, [[40, 0, 20], [0, 20, 10]]).prices()
    assert found.worth == pytest.approx(40 + 30 + 20)
    assert found.prices == pytest.approx([1, 2, 1 / 3])
    assert found.unique
    assert found.shares == pytest.approx([40 + 20 / 3, 40 + 10 / 3])
    assert found.plan == pytest.approx([0, 30, 40, 20])


def test_a_resource_that_nobody_has() -> None:
    found = LinearProduction(["a", "b"], [1, 5], [[1, 0], [0, 1]], [[1, 0], [2, 0]]).prices()
    assert found.shares == pytest.approx([1, 2])
    assert found.unique
    assert found.highest[1] == np.inf
    assert found.lowest == pytest.approx([1, 5])


def test_large_and_small_units() -> None:
    random = np.random.default_rng(4)
    use, value = random.uniform(0.1, 1, (4, 6)), random.uniform(1, 2, 6)
    resources = random.uniform(0, 1, (6, 4)) * (random.uniform(size=(6, 4)) < 0.6)
    plain = LinearProduction(list("abcdef"), value, use, resources).prices()
    units = np.array([1e12, 1e-12, 1e3, 1.0])
    scaled = LinearProduction(list("abcdef"), value * 1e6, use * units[:, None], resources * units)
    found = scaled.prices()
    assert found.shares == pytest.approx(plain.shares * 1e6, rel=1e-7)
    assert found.prices == pytest.approx(plain.prices / units * 1e6, rel=1e-7, abs=1e-9)
    assert found.unique == plain.unique
    assert blocking(scaled.game(), found.shares) == ()


def test_they_are_one_core_allocation_of_many() -> None:
    game: Game = LinearProduction(["a", "b"], [1], [[1], [1]], [[2, 1], [1, 2]]).game()
    assert game.table.tolist() == pytest.approx([0, 1, 1, 3])
    assert least_core(game).shares == pytest.approx([1.5, 1.5])


def test_nothing_to_do_or_nothing_to_do_it_with() -> None:
    idle = LinearProduction(["a", "b"], [], [[]], [[1], [2]]).prices()
    assert (idle.worth, idle.shares.tolist(), idle.unique) == (0, [0, 0], True)
    loss = LinearProduction(["a"], [-1], [[1]], [[1]]).prices()
    assert (loss.worth, loss.shares.tolist()) == (0, [0])
    assert LinearProduction(["a", "b"], [1], [[1]], [[0], [0]]).prices().worth == 0


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"b has -2 of resource 1; give each site 0 or more"):
        LinearProduction(["a", "b"], [1], [[1], [1]], [[1, 0], [0, -2]])
    with pytest.raises(UserError, match="activity 1 has a value and uses nothing"):
        LinearProduction(["a"], [1, 1], [[1, 0]], [[1]]).prices()
    with pytest.raises(UserError, match="activities make what they use"):
        LinearProduction(["a"], [1, 0], [[1, -1]], [[1]]).worth(1)
    with pytest.raises(UserError, match="a production without resources"):
        LinearProduction(["a"], [1], [], [[]]).prices()
    with pytest.raises(UserError, match=r"the resources are a table of \(1, 2\); give 1 x 1 numbers"):
        LinearProduction(["a"], [1], [[1]], [[1, 2]])
    with pytest.raises(UserError, match="the values have an unknown or endless number"):
        LinearProduction(["a"], [np.nan], [[1]], [[1]])
    with pytest.raises(UserError, match="the uses are no table of numbers; give 2 x 1 numbers"):
        LinearProduction(["a"], [1], [[1], [1, 2]], [[1, 1]])
