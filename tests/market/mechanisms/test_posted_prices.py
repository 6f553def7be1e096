"""Posted prices: rationing by hand, duals against the sorted values, the loss at a wrong price and none at the right one."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.mechanisms.posted_prices import clear, clear_all, dual_prices
from paceline.market.mechanisms.traders import Trader, price_range
from trader_draws import HIGHEST, markets

PRICES = st.integers(0, 2 * HIGHEST + 2).map(lambda halves: Fraction(halves, 2))


def test_the_long_side_is_served_in_order() -> None:
    traders = [Trader("a", 0, (9, 8)), Trader("b", 0, (7, 7)), Trader("c", 3, ())]
    assert [(t.buyer, t.units) for t in clear(traders, 5).trades] == [("a", 2), ("b", 1)]
    assert [(t.buyer, t.units) for t in clear([traders[1], traders[0], traders[2]], 5).trades] == [("b", 2), ("a", 1)]
    sellers = [Trader("a", 0, (9,)), Trader("b", 2, ()), Trader("c", 2, ())]
    assert [(t.seller, t.units) for t in clear(sellers, 5).trades] == [("b", 1)]


def test_who_gains_goes_before_who_does_not() -> None:
    traders = [Trader("at the price", 0, (5, 5)), Trader("above", 0, (9,)), Trader("seller", 1, (1,))]
    assert [t.buyer for t in clear(traders, 5).trades] == ["above"]
    assert clear(traders, 5).lost_gain == 0
    # It buys where the seller needs it, and not more.
    assert [(t.buyer, t.units) for t in clear([traders[0], traders[2]], 5).trades] == [("at the price", 1)]
    assert clear([traders[0], Trader("seller", 1, (5,))], 5).trades == ()


@given(markets(), PRICES)
def test_everybody_trades_as_much_as_the_short_side(traders: list[Trader], price: Fraction) -> None:
    done = clear(traders, price)
    demand = sum(bid > price for t in traders for bid in t.bids)
    supply = sum(ask < price for t in traders for ask in t.asks)
    assert min(demand, supply) <= done.units <= max(demand, supply)
    assert {(t.paid, t.received) for t in done.trades} <= {(price, price)}
    for trader in traders:
        bought = done.bought(trader.name)
        assert all(bid >= price for bid in trader.bids[: max(0, bought)])
        assert all(ask <= price for ask in trader.asks[: max(0, -bought)])


@given(st.lists(markets(), min_size=1, max_size=3))
def test_duals_clear_each_market_efficiently(drawn: list[list[Trader]]) -> None:
    prices = dual_prices({("a100", period): traders for period, traders in enumerate(drawn)})
    for period, traders in enumerate(drawn):
        price, between = prices["a100", period], price_range(traders)
        assert type(price) is int
        if between:
            assert between[0] <= price <= between[1]
        done = clear(traders, price)
        assert done.lost_gain == 0
        assert done.units >= done.efficient_units


@pytest.mark.parametrize("high", [10**12, 10**17, 10**21])
def test_duals_of_large_and_near_values_are_exact(high: int) -> None:
    """Values that differ by less than the solver's tolerance, then by less than a float holds, then infinite to the solver."""
    traders = [Trader("c", 1, (high,)), Trader("b", 0, (high + 1,)), Trader("a", 0, (high + 2,))]
    (price,) = dual_prices({0: traders}).values()
    assert price in (high + 1, high + 2)
    assert [trade.buyer for trade in clear(traders, price).trades] == ["a"]


def test_a_wrong_price_gives_up_gain() -> None:
    traders = [Trader("a", 0, (9,)), Trader("b", 0, (6,)), Trader("c", 1, (2,)), Trader("d", 1, (4,))]
    assert {price: clear(traders, price).lost_gain for price in (1, 3, 5, 7, 10)} == {1: 9, 3: 2, 5: 0, 7: 2, 10: 9}
    assert clear(traders, 7).lost_units == 1
    # At a price of 3 who is served first matters: b instead of a loses 3 more.
    assert clear([traders[1], traders[0], *traders[2:]], 3).lost_gain == 5


def test_markets_of_several_resources() -> None:
    markets = {
        ("v100", 0): [Trader("a", 0, (5,)), Trader("b", 1, (2,))],
        ("a100", 0): [Trader("a", 2, (5,)), Trader("b", 0, (2,))],
        ("a100", 1): [Trader("a", 0, (5,)), Trader("b", 0, (2,))],
    }
    done = clear_all(markets)
    assert {good: (c.bought("a"), c.lost_gain) for good, c in done.items()} == {
        ("v100", 0): (1, 0),
        ("a100", 0): (-1, 0),
        ("a100", 1): (0, 0),
    }
    assert dual_prices(markets)["a100", 1] == 5
    posted = clear_all(markets, {("v100", 0): 6, ("a100", 0): 1, ("a100", 1): 1})
    assert [c.units for c in posted.values()] == [0, 1, 0]
    with pytest.raises(UserError, match=r"no price for \('a100', 1\)"):
        clear_all(markets, {("v100", 0): 6, ("a100", 0): 1})


def test_nothing_to_price() -> None:
    assert dual_prices({}) == {}
    assert dual_prices({0: [Trader("a", 2, ())]}) == {0: 0}
    assert dual_prices({0: [Trader("a", 2, ())], 1: [Trader("a", 0, (7,))]}) == {0: 0, 1: 7}


def test_mistakes() -> None:
    with pytest.raises(UserError, match="a price of -1 is negative"):
        clear([], -1)
    with pytest.raises(UserError, match=r"a price of 0\.5; give whole micro-currency"):
        clear([], 0.5)  # type: ignore[arg-type]
