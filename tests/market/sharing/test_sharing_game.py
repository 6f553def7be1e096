"""SC-Share's game on the exact chain: equilibria, symmetry, prices at which nothing is gained, and selfishness."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.sharing_chain import Cloud, SharingFigures, stationary
from paceline.errors import UserError
from paceline.market.sharing.sharing_game import Performance, Profile, SharingGame, equilibria, equilibrium, optimum, welfare


@cache
def exact(*clouds: Cloud) -> SharingFigures:
    return stationary(clouds)


def game(clouds: list[Cloud], price: float, gamma: float = 0.0, cloud_price: float = 1.0) -> SharingGame:
    def performance(profile: Profile) -> Performance:
        shared = [
            Cloud(cloud.machines, lends, cloud.arrivals_per_s, cloud.mean_s, cloud.patience_s)
            for cloud, lends in zip(clouds, profile, strict=True)
        ]
        found = exact(*shared)
        means = np.array([cloud.mean_s for cloud in clouds])
        return Performance(cloud_price * found.forwarded_per_s * means, found.borrowed, found.lent, found.utilisation)

    choices = tuple(tuple(range(cloud.machines + 1)) for cloud in clouds)
    return SharingGame(performance, choices, price, gamma, cloud_price)


ALIKE = [Cloud(3, 0, 2.4, 1.0, 0.3)] * 2
BUSY_AND_IDLE = [Cloud(3, 0, 4.0, 1.0, 0.3), Cloud(4, 0, 1.0, 1.0, 0.3)]


@pytest.mark.everyday("clouds0-0.1", "clouds0-0.8", "clouds1-0.4")
@pytest.mark.parametrize("price", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("clouds", [ALIKE, BUSY_AND_IDLE])
def test_at_an_equilibrium_nobody_gains_by_a_change_and_nobody_loses(clouds: list[Cloud], price: float) -> None:
    sharing = game(clouds, price)
    found = equilibrium(sharing)
    assert found.found
    assert (found.utilities >= -1e-12).all()
    for site, shared in itertools.product(range(2), range(4)):
        other = (*found.profile[:site], shared, *found.profile[site + 1 :])
        assert sharing.utilities(other)[site] <= found.utilities[site] + 1e-9


def test_equal_sites_have_a_symmetric_equilibrium() -> None:
    sharing = game(ALIKE, 0.4)
    found = equilibrium(sharing)
    there = sharing.at(found.profile)
    assert found.profile[0] == found.profile[1] > 0
    assert there.borrowed == pytest.approx(there.lent)


def test_at_the_price_of_the_cloud_a_borrower_gains_nothing() -> None:
    """What it borrows would have been forwarded, at the same price; with patience it borrows what could have waited too."""
    for patience, exactly in ((0.0, True), (0.3, False)):
        clouds = [Cloud(3, 0, 4.0, 1.0, patience), Cloud(4, 0, 1.0, 1.0, patience)]
        sharing = game(clouds, 1.0)
        for lent in range(1, 5):
            utility = sharing.utilities((0, lent))[0]
            assert utility == pytest.approx(0, abs=1e-9) if exactly else utility < 0
        assert game(clouds, 0.2).utilities((0, 4))[0] > 0


def test_at_no_price_nobody_lends_for_money() -> None:
    found = equilibrium(game(BUSY_AND_IDLE, 0.0))
    assert found.profile == (0, 0) and not found.utilities.any()


def test_the_largest_welfare_is_that_of_all_profiles() -> None:
    sharing = game(BUSY_AND_IDLE, 0.5)
    best = optimum(sharing)
    every = [welfare(sharing.utilities(p), p, 0.0) for p in itertools.product(*sharing.choices)]
    assert best.whole and best.welfare == pytest.approx(max(every))


def stated(utilities: dict[Profile, tuple[float, float]], most: int = 2) -> SharingGame:
    """A game of two sites whose utilities are written down; 0 elsewhere."""

    def performance(profile: Profile) -> Performance:
        return Performance(-np.array(utilities.get(profile, (0.0, 0.0))), np.zeros(2), np.zeros(2), np.zeros(2))

    return SharingGame(performance, (tuple(range(most + 1)),) * 2, 1.0)


STAG_HUNT = {
    (1, 1): (1.0, 1.0),
    (2, 2): (4.0, 4.0),
    (1, 2): (1.0, -9.0),
    (2, 1): (-9.0, 1.0),
    (0, 1): (0.0, -1.0),
    (1, 0): (-1.0, 0.0),
}
"""Who shares two is paid where the other does too. Equilibria: nothing shared, one each, two each."""


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_the_prices_of_anarchy_and_of_stability(alpha: float) -> None:
    sharing = stated(STAG_HUNT | {(0, 2): (0.0, -1.0), (2, 0): (-1.0, 0.0)})
    found = equilibria(sharing, alpha)
    assert found.whole and found.profiles == ((2, 2), (1, 1), (0, 0))
    assert found.welfares == pytest.approx((16, 2, 0)) and found.savings == pytest.approx((8, 2, 0))
    assert (found.price_of_anarchy, found.price_of_stability) == (math.inf, 1)
    assert (found.weighted_price_of_anarchy, found.weighted_price_of_stability) == (math.inf, 1)
    assert found.reached_from((0, 0)) == ("nothing shared",) and found.reached_from((1, 1)) == ("half shared",)
    assert found.reached_from((2, 2)) == ("everything shared", "the largest weighted welfare")


def test_the_price_of_anarchy_is_of_the_worst_equilibrium() -> None:
    """Without the one in which nothing is shared, in money: 8 over 2, and 8 over 8; the prisoners' dilemma: 4 over 2.

    Weighted by the devices offered they are 16 over 2 and 8 over 2.
    """
    found = equilibria(stated(STAG_HUNT | {(1, 0): (1.0, 0.0), (0, 1): (0.0, 1.0)}))
    assert found.profiles == ((2, 2), (1, 1)) and (found.price_of_anarchy, found.price_of_stability) == (4, 1)
    assert (found.weighted_price_of_anarchy, found.weighted_price_of_stability) == (8, 1)
    dilemma = {
        (1, 1): (1.0, 1.0),
        (2, 2): (2.0, 2.0),
        (1, 2): (3.0, 0.0),
        (2, 1): (0.0, 3.0),
        (1, 0): (1.0, 0.0),
        (0, 1): (0.0, 1.0),
    }
    found = equilibria(stated(dilemma))
    assert found.profiles == ((1, 1),) and found.price_of_anarchy == found.price_of_stability == 4 / 2
    assert found.weighted_price_of_anarchy == found.weighted_price_of_stability == 8 / 2
    assert found.most_saved.profile == (2, 2) and found.groups == ((0,),)


def test_a_game_without_equilibria_has_no_price_of_anarchy() -> None:
    pennies = {p: (1.0, -1.0) if sum(p) % 2 else (-1.0, 1.0) for p in itertools.product(range(2), repeat=2)}
    found = equilibria(stated(pennies, 1))
    assert found.whole and not found.profiles
    assert math.isnan(found.price_of_anarchy) and math.isnan(found.price_of_stability)
    assert math.isnan(found.weighted_price_of_anarchy) and math.isnan(found.weighted_price_of_stability)


@pytest.mark.parametrize("clouds", [ALIKE, BUSY_AND_IDLE])
def test_every_equilibrium_is_found_and_nothing_else(clouds: list[Cloud]) -> None:
    sharing = game(clouds, 0.5)
    found = equilibria(sharing)
    for profile in itertools.product(*sharing.choices):
        now = sharing.utilities(profile)
        stays = all(
            sharing.utilities((*profile[:i], other, *profile[i + 1 :]))[i] <= now[i] + 1e-9
            for i in range(2)
            for other in sharing.choices[i]
        )
        assert stays == (profile in found.profiles)
    assert {end.profile for end in found.responses.values() if end.found} <= set(found.profiles)
    assert 1 <= found.price_of_stability <= found.price_of_anarchy


def test_alpha_fair_welfare() -> None:
    """Equivalent incomes: 3 devices that earn the mean of 2, 3 and 3, which is the power mean of the alpha."""
    assert welfare([2.0, 3.0], (1, 2), 0.0) == 8
    assert welfare([2.0, 3.0], (1, 2), 1.0) == pytest.approx(3 * (2 * 3 * 3) ** (1 / 3))
    assert welfare([2.0, 3.0], (1, 2), 2.0) == pytest.approx(3 * 3 / (1 / 2 + 2 / 3))
    assert welfare([2.0, 3.0], (1, 2), math.inf) == 2
    assert welfare([4.0], (3,), 0.5) == pytest.approx(3 * 4)
    assert welfare([0.0, 3.0], (1, 1), 1.0) == 0 == welfare([0.0, 3.0], (1, 1), 3.0)
    assert welfare([0.0, 4.0], (1, 1), 0.5) == pytest.approx(2 * (2 / 2) ** 2)
    assert welfare([-1.0, 3.0], (1, 1), 0.5) == -math.inf
    assert welfare([0.0, 3.0], (0, 1), 1.0) == pytest.approx(3) and welfare([1.0], (0,), 0.0) == 0
    with pytest.raises(UserError, match="alpha"):
        welfare([1.0], (1,), -1.0)


@given(
    utilities=st.lists(st.floats(0.01, 100), min_size=2, max_size=5),
    alpha=st.one_of(st.floats(0, 60), st.sampled_from([0.0, 1.0, math.inf])),
    unit=st.sampled_from([1e-6, 0.01, 3.0, 1e9]),
    data=st.data(),
)
def test_welfare_is_in_the_unit_of_the_utilities(
    utilities: list[float], alpha: float, unit: float, data: st.DataObject
) -> None:
    weights = st.lists(st.integers(0, 64), min_size=len(utilities), max_size=len(utilities))
    shared = tuple(data.draw(weights))
    scaled = [value * unit for value in utilities]
    assert welfare(scaled, shared, alpha) == pytest.approx(unit * welfare(utilities, shared, alpha), rel=1e-9)


@given(first=st.lists(st.floats(0.1, 10), min_size=3, max_size=3), second=st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.5, 3.0])
def test_where_sites_share_alike_the_order_is_sc_shares(alpha: float, first: list[float], second: list[float]) -> None:
    def sc_share(utilities: list[float]) -> float:
        if alpha == 1:
            return sum(s * math.log(u) for s, u in zip(shared, utilities, strict=True))
        return sum(s * u ** (1 - alpha) for s, u in zip(shared, utilities, strict=True)) / (1 - alpha)

    shared = (4, 1, 7)
    theirs, here = (by(first) - by(second) for by in (sc_share, lambda u: welfare(u, shared, alpha)))
    assert theirs * here >= 0 or abs(here) < 1e-9


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 2.0, math.inf])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_currency_changes_no_choice_and_no_ratio(alpha: float, gamma: float) -> None:
    dollars = game(BUSY_AND_IDLE, 0.5, gamma)
    best = optimum(dollars, alpha)
    assert best.welfare > 0
    for unit in (1e-3, 100.0):  # of a thousand dollars, and cents
        other = game(BUSY_AND_IDLE, 0.5 * unit, gamma, unit)
        assert equilibrium(other).profile == equilibrium(dollars).profile
        again, found = equilibria(other, alpha), equilibria(dollars, alpha)
        assert again.best.profile == best.profile and again.best.welfare == pytest.approx(unit * best.welfare)
        assert again.profiles == found.profiles and again.price_of_anarchy == pytest.approx(found.price_of_anarchy)
        assert again.weighted_price_of_anarchy == pytest.approx(found.weighted_price_of_anarchy)


def test_gamma_divides_by_the_extra_use() -> None:
    sharing, plain = game(BUSY_AND_IDLE, 0.5, gamma=1.0), game(BUSY_AND_IDLE, 0.5)
    more = sharing.at((0, 2)).utilisation - sharing.at((0, 0)).utilisation
    assert sharing.utilities((0, 2))[1] == pytest.approx(plain.utilities((0, 2))[1] / more[1])


def test_responses_that_go_in_a_circle_are_said() -> None:
    def matching(profile: Profile) -> Performance:  # one wants the same as the other, who wants another
        same = profile[0] == profile[1]
        cloud = np.array([0.0 if same else 1.0, 1.0 if same else 0.0])
        return Performance(cloud, np.zeros(2), np.zeros(2), np.zeros(2))

    found = equilibrium(SharingGame(matching, ((0, 1), (0, 1)), 0.5), start=(1, 1))
    assert not found.found and len(found.cycle) >= 1


def test_many_profiles_are_searched() -> None:
    def concave(profile: Profile) -> Performance:
        x = np.array(profile, float)
        return Performance((x - 5) ** 2, np.zeros(4), np.zeros(4), np.zeros(4))

    found = equilibria(SharingGame(concave, (tuple(range(20)),) * 4, 0.5))
    assert not found.best.whole and found.best.profile[0] >= 5
    assert not found.whole and found.profiles == ((5, 5, 5, 5),) and len(found.reached_from((5, 5, 5, 5))) == 4


@pytest.mark.long
@given(data=st.data())
def test_searched_best_responses_end_in_equilibria_of_the_whole_game(data: st.DataObject) -> None:
    """Two sites of 25 choices: all 625 profiles are tried for the equilibria."""
    wanted = np.array(data.draw(st.lists(st.floats(0, 24), min_size=2, max_size=2)))
    pull = np.array(data.draw(st.lists(st.floats(-0.9, 0.9), min_size=2, max_size=2)))
    ripple = data.draw(st.floats(0, 30))

    def performance(profile: Profile) -> Performance:  # each wants a number that depends on the other's, roughly
        x = np.array(profile, float)
        rough = ripple * np.sin(2.1 * x)
        return Performance((x - wanted - pull * x[::-1]) ** 2 + rough, np.zeros(2), np.zeros(2), np.zeros(2))

    sharing = SharingGame(performance, (tuple(range(25)),) * 2, 0.5)
    found = equilibria(sharing)
    for end in found.responses.values():
        assert end.found == (end.profile in found.profiles)
    # Responses that both rise, or both fall, have an equilibrium among integers too (Topkis 1979); others may go in a circle.
    if not ripple and 0 <= pull.prod() < 0.5:
        assert any(end.found for end in found.responses.values())


def test_a_site_with_many_choices_searches_them_and_then_tries_each() -> None:
    asked: set[Profile] = set()

    def narrow(profile: Profile) -> Performance:  # a peak at 90 that a search from 0 does not meet, and a hump at 20
        asked.add(profile)
        x = profile[0]
        return Performance(np.array([abs(x - 20.0) - 100 * (x == 90)]), np.zeros(1), np.zeros(1), np.zeros(1))

    sharing = SharingGame(narrow, (tuple(range(200)),), 0.5)
    assert sharing.best_response((0,), 0, whole=False) == 20 and len(asked) < 60
    assert equilibrium(sharing).profile == (90,)


@pytest.mark.parametrize(
    "wrong",
    [{"price": 2.0}, {"price": -0.1}, {"gamma": 1.5}, {"choices": ()}, {"choices": ((1, 2),)}, {"choices": ((0, 2, 1),)}],
)
def test_mistakes(wrong: dict[str, object]) -> None:
    given = {"performance": lambda profile: None, "choices": ((0, 1),), "price": 0.5, "cloud_price": 1.0, **wrong}
    with pytest.raises(UserError):
        SharingGame(**given)  # type: ignore[arg-type]
