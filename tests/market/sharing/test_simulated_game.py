"""The sharing game of traces."""

from __future__ import annotations

import math

import pytest

from market.sites import busy_and_idle, job, site, two_sites
from paceline.errors import UserError
from paceline.market.federation.site import Federation
from paceline.market.game.settlement import savings_under
from paceline.market.sharing.simulated_game import decide, simulated_game


def test_performance_is_what_the_simulation_says() -> None:
    game = simulated_game(savings_under(busy_and_idle(), "prices"), 0.1)
    nothing, everything = game.at((0, 0)), game.at((0, 8))
    # Over ten hours: five jobs wait 0 to 4 hours alone, 0, 0, 1, 1 and 2 with the other's devices.
    assert nothing.cost.tolist() == pytest.approx([8 * 10 / 10, 0])
    assert everything.cost.tolist() == pytest.approx([8 * 4 / 10, 0])
    assert everything.lent.tolist() == pytest.approx([0, 16 / 10]) and everything.borrowed.tolist() == pytest.approx([1.6, 0])


def test_the_idle_site_lends_at_a_price_and_nothing_without() -> None:
    savings = savings_under(busy_and_idle(), "prices")
    paid, free = decide(savings, 0.1), decide(savings, 0.0)
    assert paid.found.found and paid.found.profile[1] == 8 and (paid.found.utilities > 0).all()
    assert free.found.profile == (0, 0)
    game = simulated_game(savings, 0.1)
    # In money the busy site's offer is worth nothing, since nobody borrows from it: whatever it shares is an equilibrium with
    # equal utilities, and each saves the most that can be saved: (8 * 10 - 8 * 4) / 10 hours.
    assert paid.best.whole and paid.best.profile == (0, 8) and paid.best.welfare == pytest.approx(4.8)
    assert paid.equilibria.price_of_anarchy == paid.equilibria.price_of_stability == pytest.approx(1)
    assert paid.equilibria.profiles == tuple((shared, 8) for shared in range(9))
    assert paid.equilibria.groups == (tuple(range(9)),) and paid.to_json()["equal_equilibria"] == [list(range(9))]
    # SC-Share weighs a site's utility by what it shares: the busy site, which gains most, counts only where it shares too.
    utilities = game.utilities((8, 8))
    assert paid.equilibria.best.profile == (8, 8)
    anarchy = 8 * utilities.sum() / (8 * paid.found.utilities[1])
    assert paid.equilibria.weighted_price_of_anarchy == pytest.approx(anarchy) and anarchy > 5
    assert paid.equilibria.weighted_price_of_stability == pytest.approx(1)
    assert free.equilibria.price_of_anarchy == free.equilibria.weighted_price_of_anarchy == math.inf
    assert paid.to_json()["equilibria"][-1]["reached_from"] == ["everything shared", "the largest weighted welfare"]
    assert paid.to_json()["equilibria"][0]["reached_from"] == ["nothing shared"]
    assert [row["site"] for row in paid.rows()] == ["busy", "idle"]


def test_equal_sites_choose_alike() -> None:
    found = decide(savings_under(two_sites(), "prices"), 0.01)
    assert found.found.profile[0] == found.found.profile[1]


def test_a_price_above_the_cloud_is_refused() -> None:
    sites = (site("A", [job("a", 0, 10)], cloud_price=2.0, cloud_after_s=60.0), site("B", [job("b", 0, 10)]))
    savings = savings_under(Federation(sites=sites, currency="$"), "prices")
    with pytest.raises(UserError, match=r"price of 3.0 .* 2.0 in the cloud"):
        decide(savings, 3.0)
    assert math.isnan(decide(savings, 1.0).equilibria.price_of_anarchy)


def test_a_site_chooses_evenly_from_none_to_all() -> None:
    savings = savings_under(busy_and_idle(), "prices")
    assert simulated_game(savings, 0.1, choices=2).choices == ((0, 8), (0, 8))
    assert simulated_game(savings, 0.1, choices=5).choices == ((0, 2, 4, 6, 8),) * 2
    assert simulated_game(savings, 0.1, choices=100).choices == (tuple(range(9)),) * 2
    with pytest.raises(UserError, match="1 choices of a site"):
        simulated_game(savings, 0.1, choices=1)


def test_every_integer_is_searched_on_a_larger_federation() -> None:
    """33 integers a site: a search, then a try of each; the equilibria of all 1,089 profiles say whether it is right."""
    busy = site("busy", [job(f"a{i}", 60 * i, 1800 + 37 * i, 4) for i in range(60)], "4x8xV100", waiting_price=8.0)
    idle = site("idle", [job(f"b{i}", 700 * i, 3000, 8) for i in range(6)], "4x8xV100", notice_s=600.0)
    found = decide(savings_under(Federation(sites=(busy, idle), currency="$"), "prices"), 0.2, choices=33)
    assert found.profiles == 33**2 and found.equilibria.whole
    ends = found.equilibria.responses.values()
    assert any(end.found for end in ends)
    assert all(end.found == (end.profile in found.equilibria.profiles) for end in ends)
