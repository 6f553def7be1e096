"""McAfee's auction against its rule written for lists of numbers, and the split auction."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.market.mechanisms.double_auction import draw_halves, mcafee, split_auction
from paceline.market.mechanisms.traders import Money, Trader
from trader_draws import HIGHEST, NAMES, markets, values


def market(bids: tuple[int, ...], asks: tuple[int, ...]) -> list[Trader]:
    buyers = [Trader(f"b{i}", 0, (bid,)) for i, bid in enumerate(bids)]
    return [*buyers, *(Trader(f"s{i}", 1, (ask,)) for i, ask in enumerate(asks))]


TABLE = [
    # bids, asks, limits, units, paid, received, lost
    ((9, 8, 7, 4), (2, 3, 4, 5), None, 3, Fraction(9, 2), Fraction(9, 2), 0),  # a_k = 4 <= p0 <= b_k = 7
    ((9, 8, 3), (2, 4, 20), None, 1, 8, 4, 1),  # p0 = 11.5 is above b_k
    ((9, 8, 1), (2, 7, 8), None, 1, 8, 7, 1),  # p0 = 4.5 is below a_k
    ((9, 8, 3), (2, 4, 13), None, 2, 8, 8, 0),  # p0 is b_k itself
    ((9, 8, 6), (2, 7, 8), None, 2, 7, 7, 0),  # p0 is a_k itself
    ((9, 8), (2, 4), None, 1, 8, 4, 1),  # no k + 1
    ((9, 8), (2, 4), (0, 12), 2, 6, 6, 0),  # the limits stand for it
    ((9, 8, 1), (2, 4), (0, 10), 2, Fraction(11, 2), Fraction(11, 2), 0),  # one side only
    ((9, 8, 1), (2, 4), None, 1, 8, 4, 1),
    ((5,), (5,), None, 0, None, None, 0),  # a trade without a gain is no loss
    ((5,), (4,), None, 0, None, None, 1),
    ((5,), (4,), (0, 10), 1, 5, 5, 0),
    ((3,), (4,), None, 0, None, None, 0),
    ((), (4,), None, 0, None, None, 0),
    ((7, 7, 7), (7, 7, 7), None, 2, 7, 7, 0),  # ties everywhere
    ((7, 7, 7), (1, 1, 9), None, 1, 7, 1, 1),  # p0 = 8
]


@pytest.mark.parametrize(("bids", "asks", "limits", "units", "paid", "received", "lost"), TABLE)
def test_by_hand(
    bids: tuple[int, ...],
    asks: tuple[int, ...],
    limits: tuple[Money, Money] | None,
    units: int,
    paid: Money | None,
    received: Money | None,
    lost: int,
) -> None:
    done = mcafee(market(bids, asks), limits)
    assert done.units == units
    assert done.lost_units == lost
    assert {trade.paid for trade in done.trades} == ({paid} if units else set())
    assert {trade.received for trade in done.trades} == ({received} if units else set())
    assert done.surplus == (units * (paid - received) if paid is not None and received is not None else 0)
    # The highest bids and the lowest asks trade.
    assert [trade.buyer for trade in done.trades] == [f"b{i}" for i in range(units)]
    assert [trade.seller for trade in done.trades] == [f"s{i}" for i in range(units)]


def rule(bids: list[int], asks: list[int]) -> tuple[int, Fraction, Fraction]:
    """Units, price paid and price received by McAfee's rule, from lists alone."""
    bids, asks = sorted(bids, reverse=True), sorted(asks)
    k = sum(1 for bid, ask in zip(bids, asks, strict=False) if bid >= ask)  # once below, a pair stays below
    if k == 0:
        return 0, Fraction(0), Fraction(0)
    if k < len(bids) and k < len(asks):
        middle = Fraction(bids[k] + asks[k]) / 2
        if asks[k - 1] <= middle <= bids[k - 1]:
            return k, middle, middle
    return k - 1, Fraction(bids[k - 1]), Fraction(asks[k - 1])


@given(markets())
def test_the_rule_with_several_units(traders: list[Trader]) -> None:
    units, paid, received = rule([b for t in traders for b in t.bids], [a for t in traders for a in t.asks])
    done = mcafee(traders)
    assert {(trade.paid, trade.received) for trade in done.trades} <= {(paid, received)}
    assert done.surplus == done.units * (paid - received) >= 0
    assert done.units <= units  # less where a site would have traded with itself
    assert done.lost_units <= 1
    assert all(trade.units > 0 and trade.buyer != trade.seller for trade in done.trades)
    if units and paid != received:
        assert done.lost_gain == paid - received
        assert done.units == units
    elif units:
        assert done.lost_gain == 0


@given(markets())
def test_wide_limits_change_no_other_case(traders: list[Trader]) -> None:
    """Limits matter only where the next bid or ask is missing."""
    bids, asks = [b for t in traders for b in t.bids], [a for t in traders for a in t.asks]
    k = sum(1 for bid, ask in zip(sorted(bids)[::-1], sorted(asks), strict=False) if bid >= ask)
    if k < min(len(bids), len(asks)):
        assert mcafee(traders, (0, HIGHEST)) == mcafee(traders)


def test_a_lower_bid_of_a_site_moves_the_price_of_its_others() -> None:
    """With one unit a site nobody gains so; see the claims in ``test_properties.py``."""
    truth = [Trader("a", 0, (9, 6)), Trader("b", 1, (2,)), Trader("c", 1, (4,)), Trader("d", 1, (8,)), Trader("e", 0, (4,))]
    honest = mcafee(truth)
    assert truth[0].payoff(honest.bought("a"), honest.payment("a")) == 15 - 12
    lie = mcafee([Trader("a", 0, (9, 4)), *truth[1:]])
    assert truth[0].payoff(lie.bought("a"), lie.payment("a")) == 9 - 4


@given(markets(), st.integers())
def test_halves_depend_on_names_and_the_seed_alone(traders: list[Trader], seed: int) -> None:
    first, second = draw_halves(traders, seed)
    assert sorted(t.name for t in [*first, *second]) == sorted(t.name for t in traders)
    changed = draw_halves([Trader(t.name, 0, ()) for t in reversed(traders)], seed)
    assert [[t.name for t in half] for half in changed] == [[t.name for t in half] for half in (first, second)]


def test_halves_differ_between_seeds() -> None:
    traders = [Trader(name, 0, ()) for name in NAMES]
    drawn = {tuple(tuple(t.name for t in half) for half in draw_halves(traders, seed)) for seed in range(50)}
    assert len(drawn) > 40


@given(values(), markets())
def test_a_half_does_not_move_its_own_price(changed: tuple[int, ...], traders: list[Trader]) -> None:
    half, other = traders[:2], [Trader(f"{t.name}'", t.owned, t.values) for t in traders]
    prices = {t.paid for t in split_auction(half, other).trades if t.buyer in NAMES}
    lied = [Trader(half[0].name, half[0].owned, changed), *half[1:]]
    after = {t.paid for t in split_auction(lied, other).trades if t.buyer in NAMES}
    assert len(prices | after) <= 1


def test_a_split_auction_by_hand() -> None:
    first = [Trader("a", 0, (9, 5)), Trader("b", 2, (1,))]
    second = [Trader("c", 0, (8, 2)), Trader("d", 1, (4,))]
    # Demand equals supply at 1 to 5 in the first half, hence 3 in the second; at 4 to 8 in the second, hence 6 in the first.
    done = split_auction(first, second)
    assert [(t.buyer, t.seller, t.units, t.paid, t.received) for t in done.trades] == [("a", "b", 1, 6, 6)]
    assert done.lost_gain == (9 + 8 + 5) - (4 + 1) - (9 - 0) + 0


def test_mistakes() -> None:
    with pytest.raises(UserError, match="two traders are named 'a'"):
        mcafee([Trader("a", 0, (1,)), Trader("a", 1, (1,))])
    with pytest.raises(UserError, match="two traders are named 'a'"):
        split_auction([Trader("a", 0, (1,))], [Trader("a", 1, (1,))])
    with pytest.raises(UserError, match="a value of 12 is outside the limits, 0 to 10"):
        mcafee([Trader("a", 0, (12,))], (0, 10))
    with pytest.raises(UserError, match="limits from 5 to 4; give the lower one first"):
        mcafee([], (5, 4))
