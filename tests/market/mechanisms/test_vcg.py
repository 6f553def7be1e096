"""VCG against the (k+1)-st price, Clarke's formula by brute force, and its deficit."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.mechanisms.traders import Money, Trader
from paceline.market.mechanisms.vcg import vcg_exchange, vcg_sale
from trader_draws import markets


def best(traders: list[Trader], units: int) -> Money:
    ways = product(*(range(len(trader.values) + 1) for trader in traders))
    return max(sum(t.value(n) for t, n in zip(traders, way, strict=True)) for way in ways if sum(way) <= units)


@given(markets(one_unit=True, owned=0), st.integers(0, 6))
def test_the_next_price(buyers: list[Trader], units: int) -> None:
    """k units for buyers of one each: all winners pay the (k+1)-st value (Vickrey 1961)."""
    ranked = sorted((buyer.values[0] for buyer in buyers), reverse=True)
    price = ranked[units] if units < len(ranked) else 0
    sale = vcg_sale(buyers, units)
    assert {sale.payments[b.name] for b in buyers if sale.holdings[b.name]} <= {price}
    assert all(sale.payments[b.name] == 0 for b in buyers if not sale.holdings[b.name])
    assert sum(sale.holdings.values()) == min(units, sum(value > 0 for value in ranked))
    assert sale.deficit == -price * sum(sale.holdings.values())


def test_the_next_values_of_the_others() -> None:
    """Several units a buyer: the winner of m units pays the m highest losing values of the others."""
    buyers = [Trader("a", 0, (10, 8, 2)), Trader("b", 0, (9, 5)), Trader("c", 0, (6, 4))]
    sale = vcg_sale(buyers, 3)
    assert sale.holdings == {"a": 2, "b": 1, "c": 0}
    assert sale.payments == {"a": 6 + 5, "b": 6, "c": 0}


def test_a_reserve() -> None:
    buyers = [Trader("a", 0, (10, 8)), Trader("b", 0, (3,))]
    sale = vcg_sale(buyers, 3, reserve=4)
    assert sale.holdings == {"a": 2, "b": 0}
    assert sale.payments == {"a": 8, "b": 0}
    assert sale.deficit == -8


@given(markets())
def test_clarke_by_brute_force(traders: list[Trader]) -> None:
    owned = sum(trader.owned for trader in traders)
    result = vcg_exchange(traders)
    total = best(traders, owned)
    for trader in traders:
        others = [other for other in traders if other is not trader]
        now = total - trader.value(result.holdings[trader.name])
        assert result.payments[trader.name] == best(others, owned - trader.owned) - now
    assert result.deficit >= 0


def test_bilateral_trade_costs_the_whole_gain() -> None:
    """A seller at 3 and a buyer at 8: the buyer pays 3, the seller receives 8 (Myerson and Satterthwaite's case)."""
    result = vcg_exchange([Trader("buyer", 0, (8,)), Trader("seller", 1, (3,))])
    assert result.holdings == {"buyer": 1, "seller": 0}
    assert result.payments == {"buyer": 3, "seller": -8}
    assert result.deficit == 5


def test_mistakes() -> None:
    with pytest.raises(UserError, match="'a' owns units in a sale from outside; use an exchange"):
        vcg_sale([Trader("a", 1, (1,))], 2)
    with pytest.raises(UserError, match="-1 units for sale"):
        vcg_sale([Trader("a", 0, (1,))], -1)
    with pytest.raises(UserError, match="two traders are named 'a'"):
        vcg_exchange([Trader("a", 0, (1,)), Trader("a", 0, (1,))])
