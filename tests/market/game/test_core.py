"""The core, the least core and the nucleolus."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import linprog

import cooperative_games as games
from cooperative_games import membership
from paceline.errors import UserError
from paceline.market.game.core import blocking, least_core, nucleolus
from paceline.market.game.game import Game
from paceline.market.game.shapley import exact


def excesses(game: Game, shares: np.ndarray | list[float]) -> np.ndarray:
    """Return the gain of each coalition if it leaves."""
    return game.table - membership(game) @ np.asarray(shares, float)


def least_eps_by_balanced_weights(game: Game) -> float:
    """The dual, after Bondareva and Shapley: weights of the coalitions that count each player equally, mu times."""
    proper, values = membership(game)[1:-1], game.table
    count = len(proper)
    answer = linprog(
        [*-values[1:-1], values[-1]],
        A_eq=np.block([[proper.T, -np.ones((proper.shape[1], 1))], [np.ones((1, count)), np.zeros((1, 1))]]),
        b_eq=[*np.zeros(proper.shape[1]), 1.0],
        method="highs-ipm",
    )
    return -float(answer.fun)


def is_prenucleolus(game: Game, shares: np.ndarray) -> bool:
    """Kohlberg's criterion (1971): for each t, the coalitions of excess >= t are balanced, all with positive weights. Once they
    have full rank, every larger set is balanced too."""
    excess = excesses(game, shares)[1:-1]
    proper = membership(game)[1:-1]
    near = 1e-7 * max(1.0, float(np.abs(game.table).max()))
    levels: list[float] = []
    for value in sorted(excess, reverse=True):
        if not levels or value < levels[-1] - near:
            levels.append(value)
    for level in levels:
        chosen = proper[excess >= level - near]
        count = len(chosen)
        # The largest weight that all can have at least, where each player is counted once a unit of scale.
        answer = linprog(
            [*np.zeros(count + 1), -1.0],
            A_ub=np.column_stack([-np.eye(count), np.zeros(count), np.ones(count)]),
            b_ub=np.zeros(count),
            A_eq=np.column_stack([chosen.T, -np.ones(chosen.shape[1]), np.zeros(chosen.shape[1])]),
            b_eq=np.zeros(chosen.shape[1]),
            bounds=[*[(0, None)] * count, (0, None), (None, 1)],
        )
        if -answer.fun < 0.5:
            return False
        if np.linalg.matrix_rank(chosen) == chosen.shape[1]:
            break
    return True


def talmud(estate: float, claims: list[float]) -> list[float]:
    """Half the claims limit equal awards up to half their sum, equal losses beyond (Aumann and Maschler 1985)."""

    def equal(amount: float, limits: list[float]) -> list[float]:
        low, high = 0.0, max(limits)
        for _ in range(200):
            level = (low + high) / 2
            low, high = (level, high) if sum(min(level, limit) for limit in limits) < amount else (low, level)
        return [min(high, limit) for limit in limits]

    halves = [claim / 2 for claim in claims]
    if estate <= sum(halves):
        return equal(estate, halves)
    return [claim - loss for claim, loss in zip(claims, equal(sum(claims) - estate, halves), strict=True)]


def test_gloves() -> None:
    for found in (least_core(games.GLOVES), nucleolus(games.GLOVES)):
        assert found.shares == pytest.approx([1, 0, 0], abs=1e-9)
        assert found.eps == pytest.approx(0, abs=1e-9)
        assert (found.checked, found.whole, found.individually_rational) == (6, True, True)
    leaving = blocking(games.GLOVES, exact(games.GLOVES).shares)
    assert [(one.coalition, one.gain) for one in leaving] == [(0b011, pytest.approx(1 / 6)), (0b101, pytest.approx(1 / 6))]
    assert blocking(games.GLOVES, [1, 0, 0]) == ()


def test_excesses_and_the_largest_gain_first() -> None:
    game = games.named([0, 0, 1, 4, 0, 9, 5, 10])
    assert excesses(game, [5, 3, 2]).tolist() == [0, -5, -2, -4, -2, 2, 0, 0]
    assert [(one.coalition, one.gain) for one in blocking(game, [1, 1, 7])] == [(0b011, 2), (0b101, 1), (0b111, 1)]
    assert blocking(game, [1, 1, 7], [1, 2, 4]) == ()


def test_rounding_blocks_nothing() -> None:
    million = games.named([0, 0, 0, 1e6])
    assert blocking(million, [5e5, 5e5 - 1e-4]) == ()
    assert len(blocking(million, [5e5, 5e5 - 1e-2])) == 1
    assert len(blocking(million, [5e5, 5e5 - 1e-4], tolerance=1e-12)) == 1


def test_pools_of_servers_share_by_shapley_in_the_core() -> None:
    game = games.erlang_pools()
    assert blocking(game, exact(game).shares) == ()
    assert least_core(game).eps < 0


def test_three_of_which_two_decide_have_an_empty_core() -> None:
    game = games.of_members([1, 1, 1], lambda members: len(members) >= 2)
    for found in (least_core(game), nucleolus(game)):
        assert found.shares == pytest.approx([1 / 3] * 3)
        assert found.eps == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("estate", "awards"), [(100, [100 / 3] * 3), (200, [50, 75, 75]), (300, [50, 100, 150])], ids=["100", "200", "300"]
)
def test_the_talmud(estate: float, awards: list[float]) -> None:
    claims = [100.0, 200.0, 300.0]
    assert talmud(estate, claims) == pytest.approx(awards)
    assert nucleolus(games.bankruptcy(estate, claims)).shares == pytest.approx(awards)


def test_bankruptcies() -> None:
    random = np.random.default_rng(5)
    for creditors in (2, 4, 6, 8):
        claims = np.round(random.uniform(1, 1000, creditors)).tolist()
        estate = sum(claims) * random.uniform()
        assert nucleolus(games.bankruptcy(estate, claims)).shares == pytest.approx(talmud(estate, claims), rel=1e-7)


def test_airports() -> None:
    random = np.random.default_rng(7)
    for costs in ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [5.0, 5.0, 6.0, 30.0], np.sort(random.uniform(1, 1e6, 9)).tolist()):
        game = games.airport(costs)
        found = nucleolus(game)
        assert np.array(costs) - found.shares == pytest.approx(games.airport_nucleolus(costs), rel=1e-7)
        assert blocking(game, found.shares) == ()


@given(games.convex_tables())
def test_convex_games_have_shapley_and_nucleolus_in_the_core(values: list[float]) -> None:
    game = games.named(values)
    assert blocking(game, exact(game).shares) == ()
    assert blocking(game, nucleolus(game).shares, tolerance=1e-7) == ()
    assert least_core(game).eps <= 1e-7


@given(games.tables())
def test_no_division_has_a_smaller_eps(values: list[int]) -> None:
    game = games.named(values)
    found = least_core(game)
    assert found.eps == pytest.approx(least_eps_by_balanced_weights(game), abs=1e-5)
    assert found.shares.sum() == pytest.approx(values[-1], abs=1e-9)
    assert excesses(game, found.shares)[1:-1].max() == pytest.approx(found.eps, abs=1e-9)


@given(games.tables())
def test_the_nucleolus_passes_kohlbergs_criterion(values: list[int]) -> None:
    # The value of everyone is raised so that the least core is individually rational: nucleolus and prenucleolus coincide.
    game = games.named([*values[:-1], 400])
    found = nucleolus(game)
    assert found.individually_rational
    assert is_prenucleolus(game, found.shares)
    moved = found.shares + np.array([1e-3, -1e-3, *[0] * (len(game.players) - 2)])
    assert not is_prenucleolus(game, moved)


@given(games.tables(3, 4))
def test_no_division_is_before_the_nucleolus(values: list[int]) -> None:
    game = games.named(values)
    found = nucleolus(game)
    alone = game.table[[1 << i for i in range(len(game.players))]]
    assert found.individually_rational == (alone.sum() <= game.table[-1])
    ours = np.sort(excesses(game, found.shares)[1:-1])[::-1]
    assert ours[0] == pytest.approx(found.eps, abs=1e-9)
    random = np.random.default_rng(0)
    for scale in (0.01, 1, 10):
        for _ in range(20):
            step = random.normal(size=len(alone)) * scale
            other = found.shares + step - step.mean()
            if found.individually_rational and (other < alone).any():
                continue
            theirs = np.sort(excesses(game, other)[1:-1])[::-1]
            differing = np.flatnonzero(np.abs(theirs - ours) > 1e-7)
            assert theirs[differing[0]] > ours[differing[0]]


def test_nobody_gets_less_than_alone_where_that_is_possible() -> None:
    # Two save 2, a third one spoils it to 1. The least core would have the third one pay.
    game = games.named([0, 0, 0, 2, 0, 0, 0, 1])
    assert nucleolus(game).shares == pytest.approx([0.5, 0.5, 0], abs=1e-9)
    assert nucleolus(game).eps == pytest.approx(1)
    assert least_core(game).eps == pytest.approx(0.5)
    assert not least_core(game).individually_rational
    losing = nucleolus(games.named([0, 0, 0, 0, 0, 0, 0, -3]))
    assert losing.shares == pytest.approx([-1, -1, -1])
    assert not losing.individually_rational


def test_ten_to_twelve_sites_of_a_million() -> None:
    random = np.random.default_rng(2)
    for players in (10, 12):
        weights = random.uniform(0.1, 1, players)
        sums = np.array([sum(games.in_mask(mask, weights.tolist())) for mask in range(1 << players)])
        values = 1e6 * (sums / sums[-1]) ** 2 * random.uniform(0.9, 1, 1 << players)
        values[[1 << i for i in range(players)]] = 0
        values[-1] = 1e6
        game = games.named(values)
        found = nucleolus(game)
        assert found.whole
        assert found.shares.sum() == pytest.approx(1e6, rel=1e-12)
        assert found.eps == pytest.approx(least_core(game).eps, rel=1e-6)
        assert is_prenucleolus(game, found.shares)


def test_units_and_own_values_do_not_change_the_division() -> None:
    random = np.random.default_rng(3)
    values = random.uniform(0, 1, 64).cumsum()
    values[0] = 0
    own = [1e6, -2e5, 0.0, 3e6, 1e3, 7.0]
    found = nucleolus(games.named(values))
    shifted = [1e-3 * value + sum(games.in_mask(mask, own)) for mask, value in enumerate(values)]
    again = nucleolus(games.named(shifted))
    assert again.shares - own == pytest.approx(1e-3 * found.shares, abs=1e-7)
    assert again.eps == pytest.approx(1e-3 * found.eps, rel=1e-4)


def test_sites_that_gain_nothing_together() -> None:
    own = [0.1, 0.7, 1e6, -3.3]
    for amounts in (own, [0.0] * 4):
        found = nucleolus(games.of_members(amounts, sum))
        assert found.shares == pytest.approx(amounts)
        assert found.individually_rational
        assert found.eps == pytest.approx(0, abs=1e-9)


def test_one_site() -> None:
    for find in (least_core, nucleolus):
        found = find(games.named([0, 5]))
        assert (found.shares.tolist(), found.eps, found.checked, found.whole) == ([5], 0, 0, True)


def test_more_sites_than_can_be_enumerated_are_searched_and_it_says_so() -> None:
    asked: list[int] = []
    weights = np.random.default_rng(1).uniform(0.1, 1, 14).tolist()

    def worth(mask: int) -> float:
        asked.append(mask)
        return sum(games.in_mask(mask, weights)) ** 2 * (1 + 0.1 * (mask % 7 == 0))

    game = Game(tuple(map(str, range(14))), worth)
    some = least_core(game, most=600)
    assert some.checked <= 600
    assert len(asked) == some.checked + 1  # everyone
    assert not some.whole

    every = least_core(game, range(1 << 14))
    assert (every.checked, every.whole) == ((1 << 14) - 2, True)
    assert some.eps <= every.eps + 1e-9
    assert least_core(game, [1, 2], most=60).checked == 28  # the single players and their complements
    fair = nucleolus(game, most=600)
    assert fair.shares.sum() == pytest.approx(game.value(game.everyone))
    assert fair.eps == pytest.approx(some.eps, rel=1e-6)
    assert not fair.whole


def test_the_search_finds_what_lies_beside_the_coalitions_that_bind() -> None:
    pair, triple = 0b1100000, 0b11100000
    asked: list[int] = []

    def worth(mask: int) -> float:
        asked.append(mask)
        return {pair: 10.0, triple: 15.0, (1 << 20) - 1: 20.0}.get(mask, 0.0)

    game = Game(tuple(map(str, range(20))), worth)
    found = least_core(game, most=1000)
    assert found.checked <= 1000
    assert asked.index(game.everyone) < asked.index(pair) < asked.index(triple)  # everyone is asked after those that are drawn
    # The three take 15 - eps, each other player -eps of the rest.
    assert found.eps == pytest.approx(-5 / 18)
    assert found.shares[5:8].sum() == pytest.approx(15 + 5 / 18)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="give 3 finite numbers"):
        blocking(games.GLOVES, [1, 0])
    with pytest.raises(UserError, match="give 3 finite numbers"):
        blocking(games.GLOVES, [1, 0, np.nan])
    with pytest.raises(UserError, match="the coalition 8; give a mask from 0 to 7"):
        least_core(games.GLOVES, [8])
    with pytest.raises(UserError, match="site0, site1 has no finite value"):
        nucleolus(games.named([0, 0, 0, np.nan]))
    many = games.airport([1.0] * 13)
    with pytest.raises(UserError, match="13 sites"):
        blocking(many, [0.0] * 13)
    with pytest.raises(UserError, match="51 coalitions; give a whole number from 52 up"):
        least_core(many, most=51)
