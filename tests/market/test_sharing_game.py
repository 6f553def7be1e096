"""SC-Share's game on the exact chain: equilibria, symmetry, prices at which nothing is gained, and selfishness."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.market.sharing_chain import Cloud, stationary
from paceline.market.sharing_game import Performance, Profile, SharingGame, efficiency, equilibrium, optimum, welfare


def game(clouds: list[Cloud], price: float, gamma: float = 0.0, cloud_price: float = 1.0) -> SharingGame:
    def performance(profile: Profile) -> Performance:
        shared = [
            Cloud(cloud.machines, lends, cloud.arrivals_per_s, cloud.mean_s, cloud.patience_s)
            for cloud, lends in zip(clouds, profile, strict=True)
        ]
        found = stationary(shared)
        means = np.array([cloud.mean_s for cloud in clouds])
        return Performance(cloud_price * found.forwarded_per_s * means, found.borrowed, found.lent, found.utilisation)

    choices = tuple(tuple(range(cloud.machines + 1)) for cloud in clouds)
    return SharingGame(performance, choices, price, gamma, cloud_price)


ALIKE = [Cloud(3, 0, 2.4, 1.0, 0.3)] * 2
BUSY_AND_IDLE = [Cloud(3, 0, 4.0, 1.0, 0.3), Cloud(4, 0, 1.0, 1.0, 0.3)]


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


def test_welfare_and_efficiency() -> None:
    sharing = game(BUSY_AND_IDLE, 0.5)
    found, best = equilibrium(sharing), optimum(sharing)
    assert best.whole and 0 < efficiency(sharing, found) <= 1
    every = [welfare(sharing.utilities(p), p, 0.0) for p in itertools.product(*sharing.choices)]
    assert best.welfare == pytest.approx(max(every))


def test_alpha_fair_welfare() -> None:
    assert welfare([2.0, 3.0], (1, 2), 0.0) == 8
    assert welfare([2.0, 3.0], (1, 2), 1.0) == pytest.approx(math.log(2) + 2 * math.log(3))
    assert welfare([2.0, 3.0], (1, 2), math.inf) == 2
    assert welfare([4.0], (3,), 0.5) == pytest.approx(3 * 2 / 0.5)
    assert welfare([0.0, 3.0], (1, 1), 1.0) == -math.inf
    assert welfare([0.0, 3.0], (0, 1), 1.0) == pytest.approx(math.log(3)) and welfare([1.0], (0,), 0.0) == 0
    with pytest.raises(UserError, match="alpha"):
        welfare([1.0], (1,), -1.0)


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

    best = optimum(SharingGame(concave, (tuple(range(20)),) * 4, 0.5))
    assert not best.whole and best.profile[0] >= 5


@pytest.mark.parametrize(
    "wrong",
    [{"price": 2.0}, {"price": -0.1}, {"gamma": 1.5}, {"choices": ()}, {"choices": ((1, 2),)}, {"choices": ((0, 2, 1),)}],
)
def test_mistakes(wrong: dict[str, object]) -> None:
    given = {"performance": lambda profile: None, "choices": ((0, 1),), "price": 0.5, "cloud_price": 1.0, **wrong}
    with pytest.raises(UserError):
        SharingGame(**given)  # type: ignore[arg-type]
