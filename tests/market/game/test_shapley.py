"""The Shapley value, exact and sampled."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cooperative_games as games
from paceline.errors import UserError
from paceline.market.game.game import Game
from paceline.market.game.shapley import exact, sample, shapley


def over_all_orders(game: Game) -> np.ndarray:
    """The definition: what each player adds to those before it, the mean of all orders."""
    players = range(len(game.players))
    orders = list(permutations(players))
    added = np.zeros(len(game.players))
    for order in orders:
        before = 0
        for player in order:
            added[player] += game.value(before | 1 << player) - game.value(before)
            before |= 1 << player
    return added / len(orders)


def test_gloves() -> None:
    value = shapley(games.GLOVES)
    assert value.shares == pytest.approx([2 / 3, 1 / 6, 1 / 6])
    assert (value.sampled, value.permutations, value.standard_error.tolist()) == (False, 0, [0, 0, 0])


def test_airlines_pay_for_the_pieces_of_the_runway_that_they_need() -> None:
    assert games.airport_shapley([1, 2, 3]) == pytest.approx([1 / 3, 5 / 6, 11 / 6])
    for costs in ([1.0, 2.0, 3.0], [1.0, 1.0, 4.0, 9.0, 9.5, 20.0]):
        assert np.array(costs) - exact(games.airport(costs)).shares == pytest.approx(games.airport_shapley(costs))


def test_pools_of_servers() -> None:
    alone = [games.erlang_c_queue(*pool) for pool in games.POOLS]
    assert alone == pytest.approx([1.0709, 0.6137, 0.2487], abs=5e-5)
    assert games.erlang_c_queue(56, 42.0) == pytest.approx(0.0772, abs=5e-5)
    assert exact(games.erlang_pools()).shares == pytest.approx([0.7780, 0.5761, 0.5020], abs=5e-5)


@given(games.tables())
def test_it_is_the_mean_over_all_orders(values: list[int]) -> None:
    game = games.named(values)
    assert exact(game).shares == pytest.approx(over_all_orders(game), abs=1e-9)


@given(games.tables(), st.data())
def test_properties(values: list[int], data: st.DataObject) -> None:
    game = games.named(values)
    players = len(game.players)
    shares = exact(game).shares
    assert shares.sum() == pytest.approx(values[-1], abs=1e-9)

    others = data.draw(st.lists(st.integers(-20, 60), min_size=len(values) - 1, max_size=len(values) - 1))
    both = [value + other for value, other in zip(values, [0, *others], strict=True)]
    assert exact(games.named(both)).shares == pytest.approx(shares + exact(games.named([0, *others])).shares, abs=1e-9)

    order = data.draw(st.permutations(range(players)))
    moved = [values[sum(1 << order[i] for i in range(players) if mask >> i & 1)] for mask in range(1 << players)]
    assert exact(games.named(moved)).shares == pytest.approx(shares[list(order)], abs=1e-9)

    own = data.draw(st.integers(-20, 60))  # a player that adds the same to everyone
    with_dummy = exact(games.named([*values, *(value + own for value in values)])).shares
    assert with_dummy == pytest.approx([*shares, own], abs=1e-9)


@given(games.convex_tables())
def test_sampling_is_efficient(values: list[float]) -> None:
    assert sample(games.named(values), 10).shares.sum() == pytest.approx(values[-1], rel=1e-12, abs=1e-9)


def test_samples_are_within_their_error_which_is_neither_too_large_nor_too_small() -> None:
    game = games.airport([1.0, 1.5, 4.0, 9.0, 9.5, 20.0])
    truth = exact(game).shares
    scores = []
    for seed in range(40):
        value = sample(game, 200, seed)
        scores.append((value.shares - truth) / value.standard_error)
        assert (value.sampled, value.permutations) == (True, 200)
    assert np.abs(scores).max() < 4
    assert 0.8 < np.std(scores) < 1.2


def test_more_sites_than_can_be_enumerated() -> None:
    costs = [float(i + 1) for i in range(30)]
    value = shapley(games.airport(costs), permutations=600, seed=3)
    error = (np.array(costs) - value.shares) - games.airport_shapley(costs)
    assert value.sampled
    assert np.abs(error / value.standard_error).max() < 4
    assert value.shares.sum() == pytest.approx(sum(costs) - 30, rel=1e-12)


def test_an_order_and_its_reverse_are_exact_where_only_pairs_matter() -> None:
    random = np.random.default_rng(0)
    worth = np.triu(random.uniform(0, 1, (8, 8)))
    rows = np.array([[mask >> i & 1 for i in range(8)] for mask in range(256)])
    game = games.named(np.einsum("ci,ij,cj->c", rows, worth, rows))
    value = sample(game, 4)
    assert value.shares == pytest.approx(exact(game).shares, rel=1e-12)
    assert value.standard_error == pytest.approx(np.zeros(8), abs=1e-12)


def test_only_the_coalitions_on_the_paths_are_valued() -> None:
    asked: list[int] = []

    def worth(mask: int) -> float:
        asked.append(mask)
        return float(mask.bit_count() ** 2)

    sample(Game(tuple(map(str, range(40))), worth), 6)
    assert len(asked) == len(set(asked)) <= 6 * 39 + 1
    assert 0 not in asked


def test_seeds() -> None:
    game = games.airport([1.0, 2.0, 3.0, 7.0])
    assert sample(game, 20, 1).shares.tolist() == sample(game, 20, 1).shares.tolist()
    assert sample(game, 20, 1).shares.tolist() != sample(game, 20, 2).shares.tolist()
    assert sample(game, 5).permutations == 6


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"3 permutations; give a whole number from 4 up"):
        sample(games.GLOVES, 3)
    with pytest.raises(UserError, match=r"-1 as the seed"):
        sample(games.GLOVES, 4, -1)
    with pytest.raises(UserError, match="finite"):
        exact(games.named([0, np.nan]))
    with pytest.raises(UserError, match="finite"):
        sample(games.named([0, np.inf]))
    with pytest.raises(UserError, match="13 sites"):
        exact(games.airport([1.0] * 13))
