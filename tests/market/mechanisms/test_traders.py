"""Traders, and the largest gain against every allocation there is."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given

from paceline.errors import UserError
from paceline.market.mechanisms.traders import Trader, cleared, efficient_holdings, most_value, price_range
from trader_draws import markets


def test_bids_and_asks() -> None:
    site = Trader("a", 2, (9, 5, 3))
    assert site.bids == (3,)
    assert site.asks == (5, 9)
    assert Trader("idle", 3, (4,)).asks == (0, 0, 4)
    assert Trader("buyer", 0, (4, 2)).asks == ()
    assert site.value(2) == 14
    assert site.payoff(1, 2) == 1
    assert site.payoff(-1, -7) == 2


@given(markets())
def test_no_allocation_is_worth_more(traders: list[Trader]) -> None:
    owned = sum(trader.owned for trader in traders)
    ways = product(*(range(len(trader.values) + 1) for trader in traders))
    best = max(sum(t.value(n) for t, n in zip(traders, way, strict=True)) for way in ways if sum(way) <= owned)
    holdings = efficient_holdings(traders)
    assert sum(holdings.values()) <= owned
    assert sum(trader.value(holdings[trader.name]) for trader in traders) == best == most_value(traders)


@given(markets())
def test_demand_equals_supply_in_the_range_and_nowhere_else(traders: list[Trader]) -> None:
    between = price_range(traders)
    owned = sum(trader.owned for trader in traders)
    assert (between is None) == (owned == 0)
    for price in [Fraction(n, 2) for n in range(21)]:
        least = sum(value > price for trader in traders for value in trader.values)
        most = sum(value >= price for trader in traders for value in trader.values)
        balanced = least <= owned and (owned <= most or price == 0)
        if between:
            assert balanced == (between[0] <= price <= between[1])


def test_a_trader_on_both_sides_trades_the_difference() -> None:
    traders = [Trader("a", 2, (5, 5, 5)), Trader("b", 0, (9,)), Trader("c", 2, (1, 1))]
    done = cleared(traders, {"a": 1, "b": 1}, {"a": 1, "c": 1}, 5, 4)
    assert [(trade.buyer, trade.seller, trade.units) for trade in done.trades] == [("b", "c", 1)]
    assert (done.gain, done.efficient_gain, done.lost_gain, done.surplus) == (8, 12, 4, 1)
    assert (done.units, done.efficient_units, done.lost_units) == (1, 2, 1)
    assert (done.bought("b"), done.payment("b"), done.bought("c"), done.payment("c")) == (1, 5, -1, -4)


def test_a_unit_stays_between_equal_values() -> None:
    assert efficient_holdings([Trader("a", 0, (5,)), Trader("b", 1, (5,))]) == {"a": 0, "b": 1}


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"a value of 'a' of 0\.5; give whole micro-currency"):
        Trader("a", 0, (0.5,))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a value of 'a' of -1 is negative"):
        Trader("a", 0, (-1,))
    with pytest.raises(UserError, match=r"'a' values a further unit more \(3\) than the one before \(2\)"):
        Trader("a", 0, (2, 3))
    with pytest.raises(UserError, match="-1 units owned by 'a'"):
        Trader("a", -1, ())
