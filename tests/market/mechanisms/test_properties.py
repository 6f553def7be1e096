"""Every claim of every rule, against the rule: drawn markets where it keeps something, a case where it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from paceline.errors import UserError
from paceline.market.game.game import Game
from paceline.market.mechanisms.double_auction import mcafee, split_auction
from paceline.market.mechanisms.posted_prices import clear, clear_all
from paceline.market.mechanisms.properties import MECHANISMS, WHY_NOT_ALL, mechanism_named
from paceline.market.mechanisms.traders import Clearing, Money, Trader, most_value
from paceline.market.mechanisms.vcg import VcgOutcome, vcg_exchange, vcg_sale
from trader_draws import HIGHEST, false_reports, markets

Deal = Mapping[str, tuple[int, Money]]
"""Units bought and money paid, by site."""
Rule = Callable[[list[Trader], int], Deal]
"""A rule with money; the number is all that it depends on beside the reports."""


def of_clearing(traders: list[Trader], done: Clearing) -> Deal:
    return {trader.name: (done.bought(trader.name), done.payment(trader.name)) for trader in traders}


def of_vcg(traders: list[Trader], done: VcgOutcome) -> Deal:
    return {t.name: (done.holdings[t.name] - t.owned, done.payments[t.name]) for t in traders}


def split(traders: list[Trader], number: int) -> Deal:
    cut = number % (len(traders) + 1)
    return of_clearing(traders, split_auction(traders[:cut], traders[cut:]))


RULES: dict[str, Rule] = {
    "mcafee": lambda traders, _: of_clearing(traders, mcafee(traders)),
    "unit-auction": lambda traders, number: of_clearing(traders, mcafee(traders, (0, HIGHEST) if number % 2 else None)),
    "split-auction": split,
    "vcg": lambda traders, _: of_vcg(traders, vcg_exchange(traders)),
    "vcg-sale": lambda traders, number: of_vcg(traders, vcg_sale(traders, number % 7, number // 7 % 4)),
    "posted-prices": lambda traders, number: of_clearing(traders, clear(traders, Fraction(number % (2 * HIGHEST + 4), 2))),
    "prices": lambda traders, _: of_clearing(traders, clear_all({0: traders})[0]),
}
SAVINGS = {"shapley", "least-core"}
"""Rules for the savings game. For two sites both share equally."""
NUMBERS = st.integers(0, 10_000)


def drawn_for(name: str) -> st.SearchStrategy[list[Trader]]:
    return markets(one_unit=name == "unit-auction", owned=0 if name == "vcg-sale" else 3)


def claiming(aspect: str, *kept: str) -> list[str]:
    """Rules with money that claim one of these."""
    return [name for name in RULES if getattr(MECHANISMS[name], aspect).kept in kept]


def test_every_rule_is_tried() -> None:
    assert (
        RULES.keys() | SAVINGS | {"credits", "karma", "auction"} == MECHANISMS.keys()
    )  # ``test_{settlement,credits,job_auction}.py``


@pytest.mark.parametrize("name", claiming("truthfulness", "dominant strategy"))
@settings(max_examples=5 * settings.default.max_examples)
@given(data=st.data(), number=NUMBERS)
def test_no_false_report_pays(name: str, data: st.DataObject, number: int) -> None:
    """Other values, more or fewer wants, units withheld: the payoff by the true values never rises."""
    traders = data.draw(drawn_for(name))
    i = data.draw(st.integers(0, len(traders) - 1))
    lie = data.draw(false_reports(traders[i], one_unit=name == "unit-auction"))
    honest = RULES[name](traders, number)
    lied = RULES[name]([*traders[:i], lie, *traders[i + 1 :]], number)
    assert traders[i].payoff(*lied[lie.name]) <= traders[i].payoff(*honest[lie.name])


LIES: dict[str, tuple[list[Trader], Trader]] = {
    "mcafee": (
        [Trader("a", 0, (9, 6)), Trader("b", 1, (2,)), Trader("c", 1, (4,)), Trader("d", 1, (8,)), Trader("e", 0, (4,))],
        Trader("a", 0, (9, 4)),
    ),
    "prices": (
        [Trader("a", 0, (9, 6, 5)), Trader("b", 2, (4, 1)), Trader("c", 1, (7,))],
        Trader("a", 0, (9,)),
    ),
}
"""A market and what its first site says instead."""


@pytest.mark.parametrize("name", claiming("truthfulness", "none"))
def test_a_gainful_lie(name: str) -> None:
    traders, lie = LIES[name]
    honest, lied = RULES[name](traders, 0), RULES[name]([lie, *traders[1:]], 0)
    assert traders[0].payoff(*lied["a"]) > traders[0].payoff(*honest["a"])


@pytest.mark.parametrize("name", claiming("individual_rationality", "yes"))
@given(data=st.data(), number=NUMBERS)
def test_nobody_is_worse_off_than_alone(name: str, data: st.DataObject, number: int) -> None:
    traders = data.draw(drawn_for(name))
    deal = RULES[name](traders, number)
    assert all(trader.payoff(*deal[trader.name]) >= 0 for trader in traders)


@pytest.mark.parametrize("name", claiming("budget_balance", "exact", "weak"))
@given(data=st.data(), number=NUMBERS)
def test_no_money_is_missing(name: str, data: st.DataObject, number: int) -> None:
    left = sum(payment for _, payment in RULES[name](data.draw(drawn_for(name)), number).values())
    assert left >= 0
    if MECHANISMS[name].budget_balance.kept == "exact":
        assert left == 0


BILATERAL = [Trader("a", 0, (8,)), Trader("b", 1, (3,))]


@pytest.mark.parametrize("name", claiming("budget_balance", "weak", "no"))
def test_money_is_left_or_missing(name: str) -> None:
    """So that weak is not exact, and no is not weak."""
    if name == "vcg":
        assert sum(payment for _, payment in RULES[name](BILATERAL, 0).values()) == -5
    elif name == "vcg-sale":
        assert sum(payment for _, payment in RULES[name]([Trader("a", 0, (8,)), Trader("b", 0, (5,))], 1).values()) == 5
    else:
        traders = [Trader("a", 0, (9,)), Trader("b", 0, (8,)), Trader("c", 1, (2,)), Trader("d", 1, (4,))]
        assert sum(payment for _, payment in RULES[name](traders, 0).values()) == 4


@pytest.mark.parametrize("name", claiming("efficiency", "yes"))
@given(data=st.data(), number=NUMBERS)
def test_no_value_is_lost(name: str, data: st.DataObject, number: int) -> None:
    traders = data.draw(drawn_for(name))
    deal = RULES[name](traders, number)
    value = sum(trader.value(trader.owned + deal[trader.name][0]) for trader in traders)
    if name == "vcg-sale":
        units, reserve = number % 7, number // 7 % 4
        kept = units - sum(bought for bought, _ in deal.values())
        assert value + kept * reserve == most_value([Trader("seller", units, (reserve,) * units), *traders])
    else:
        assert value == most_value(traders)


@pytest.mark.parametrize("name", claiming("efficiency", "partly"))
def test_value_is_lost(name: str) -> None:
    """One buyer at 8 and one seller at 3: no auction dares, and a price of 0 finds no seller."""
    assert RULES[name](BILATERAL, 0)["a"] == (0, 0)


def savings(alone_a: float, alone_b: float, together: float) -> Game:
    return Game.of_values(("a", "b"), [0, 0, 0, alone_a + alone_b - together])


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
    assert MECHANISMS[name].truthfulness.kept == "none"
    assert 8 - share(savings(8, 10, 12)) == pytest.approx(5)
    assert 10 - share(savings(10, 10, 12)) == pytest.approx(6)


@pytest.mark.parametrize(("name", "share"), [("shapley", shapley), ("least-core", least_core)])
def test_shares_of_a_loss(name: str, share: Callable[[Game], float]) -> None:
    """Where pooling costs more than it saves, the core is empty and each bears a part."""
    assert MECHANISMS[name].individual_rationality.kept == "partly"
    assert share(savings(10, 10, 24)) == pytest.approx(-2)


def test_no_rule_keeps_all() -> None:
    assert "Myerson" in WHY_NOT_ALL
    for name, rule in MECHANISMS.items():
        assert rule.name == name
        assert {*rule.keeps, *rule.gives_up} == {"efficiency", "individual rationality", "budget balance", "truthfulness"}
        # A sale from outside has one side with private values: the theorem is about two.
        assert rule.gives_up or name == "vcg-sale"
        for claim in (rule.efficiency, rule.individual_rationality, rule.budget_balance, rule.truthfulness):
            assert claim.how.endswith(".") and ". " not in claim.how
            assert claim.source
    assert MECHANISMS["vcg"].gives_up == ("budget balance",)
    assert MECHANISMS["unit-auction"].gives_up == ("efficiency",)
    assert MECHANISMS["karma"].keeps == ("budget balance",)


def test_names() -> None:
    assert mechanism_named("VCG Sale") is MECHANISMS["vcg-sale"]
    with pytest.raises(UserError, match=r"unknown rule 'shaply'.*did you mean shapley"):
        mechanism_named("shaply")
