"""Every claim about a rule, against the rule: drawn markets where it keeps something, a case where it does not.

``test_settlement.py`` and ``test_job_auction.py`` hold the counterexamples of credits and of the auction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from scipy.optimize import linprog

from market.unit_market import Trader, clear, dual_price, markets, most_value
from paceline.errors import UserError
from paceline.market.game.game import Game
from paceline.market.game.rule_properties import RULE_PROPERTIES, WHY_NOT_ALL, properties_of
from paceline.market.game.settlement import RULES


def by_prices(traders: list[Trader]) -> Mapping[str, tuple[int, int]]:
    return clear(traders, dual_price(traders))


def test_every_rule_of_settlement_is_described() -> None:
    assert RULE_PROPERTIES.keys() == RULES.keys()


def test_a_gainful_lie_about_wants_lowers_the_price() -> None:
    assert properties_of("prices").truthfulness.kept == "none"
    truth, lie = Trader("a", 0, (9, 6, 5)), Trader("a", 0, (9,))
    others = [Trader("b", 2, (4, 1)), Trader("c", 1, (7,))]
    honest, lied = by_prices([truth, *others])["a"], by_prices([lie, *others])["a"]
    assert truth.payoff(*lied) > truth.payoff(*honest)


@given(markets())
def test_prices_lose_no_value_no_money_and_no_site(traders: list[Trader]) -> None:
    claims = properties_of("prices")
    assert (claims.efficiency.kept, claims.individual_rationality.kept, claims.budget_balance.kept) == ("yes", "yes", "exact")
    deal = by_prices(traders)
    assert all(trader.payoff(*deal[trader.name]) >= 0 for trader in traders)
    assert sum(bought for bought, _ in deal.values()) == sum(paid for _, paid in deal.values()) == 0
    assert sum(trader.value(trader.owned + deal[trader.name][0]) for trader in traders) == most_value(traders)


def savings(alone_a: float, alone_b: float, together: float) -> Game:
    return Game(("a", "b"), lambda mask: alone_a + alone_b - together if mask == 3 else 0.0)


def shapley(game: Game) -> float:
    """The first of two sites: the mean of what it adds when it comes first and when it comes second."""
    return (game.value(1) - game.value(0) + game.value(3) - game.value(2)) / 2


def least_core(game: Game) -> float:
    """The first of two sites: shares x and the smallest excess e with x_a + e >= v(a), x_b + e >= v(b), x_a + x_b = v(ab)."""
    rows, bounds = [[-1, 0, -1], [0, -1, -1]], [-game.value(1), -game.value(2)]
    solved = linprog([0, 0, 1], rows, bounds, [[1, 1, 0]], [game.value(3)], [(None, None)] * 3, method="highs")
    return float(solved.x[0])


@pytest.mark.parametrize(("name", "share"), [("shapley", shapley), ("least-core", least_core)])
def test_reported_traces_can_be_bent(name: str, share: Callable[[Game], float]) -> None:
    """Alone a would cost 10, but it leaves out jobs and claims 8; together both cost 12 whatever it claims."""
    assert properties_of(name).truthfulness.kept == "none"
    assert 8 - share(savings(8, 10, 12)) == pytest.approx(5)
    assert 10 - share(savings(10, 10, 12)) == pytest.approx(6)


@pytest.mark.parametrize(("name", "share"), [("shapley", shapley), ("least-core", least_core)])
def test_shares_of_a_loss(name: str, share: Callable[[Game], float]) -> None:
    """Each site bears a part of a pool that costs more than it saves; its core is empty."""
    assert properties_of(name).individual_rationality.kept == "partly"
    assert share(savings(10, 10, 24)) == pytest.approx(-2)


def test_no_rule_keeps_all() -> None:
    assert "Myerson" in WHY_NOT_ALL
    for name, rule in RULE_PROPERTIES.items():
        assert rule.name == name
        assert rule.given_up and "truthfulness" in rule.given_up
        assert [row[0] for row in rule.rows()] == ["efficiency", "individual rationality", "budget balance", "truthfulness"]
        for _, _, how, source in rule.rows():
            assert how.endswith(".") and ". " not in how
            assert source
    assert properties_of("prices").given_up == ("truthfulness",)


def test_names() -> None:
    assert properties_of("Least Core") is RULE_PROPERTIES["least-core"]
    with pytest.raises(UserError, match=r"unknown rule 'shaply'.*did you mean shapley"):
        properties_of("shaply")
