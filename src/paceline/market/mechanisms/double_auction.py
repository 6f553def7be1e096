"""Double auctions: sites bid for units and ask for theirs; an auctioneer keeps what is left between the two prices.

McAfee's auction (A dominant strategy double auction, Journal of Economic Theory 56, 1992) is truthful for sites that trade one
unit each. With several units a site it is not: a site's lower bids and higher asks set the prices of its other units. The
split auction is truthful for several units too: each half of the sites trades at a price of the other half (Segal-Halevi,
Hassidim and Aumann, MUDA, AAAI 2018, arXiv 1712.06848).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from paceline.errors import UserError
from paceline.market.mechanisms import posted_prices
from paceline.market.mechanisms.traders import (
    Clearing,
    Money,
    Trade,
    Trader,
    check_money,
    check_traders,
    cleared,
    price_range,
    priced,
    sorted_asks,
    sorted_bids,
)


def mcafee(traders: Sequence[Trader], limits: tuple[Money, Money] | None = None) -> Clearing:
    """McAfee's double auction; each unit of a site is a bid or an ask.

    With bids b1 >= b2 >= ... and asks a1 <= a2 <= ..., k is the last number with b_k >= a_k, and p0 = (b_{k+1} + a_{k+1}) / 2.
    Where a_k <= p0 <= b_k, the first k trade at p0. Else the first k - 1 trade, buyers pay b_k and sellers receive a_k.

    Args:
        traders: the sites. Of equal bids or asks the earlier site's go first.
        limits: the lowest and the highest value that anybody may have. They stand for b_{k+1} or a_{k+1} where there is none
            (recalled: McAfee takes the ends of the distributions). Without them there is no p0 then, and k - 1 trade.

    Raises:
        UserError: two sites of one name, or a bid or an ask outside the limits.
    """
    check_traders(traders)
    bids, asks = sorted_bids(traders), sorted_asks(traders)
    if limits:
        _check_limits([price for price, _ in bids + asks], limits)
    k = 0
    while k < min(len(bids), len(asks)) and bids[k][0] >= asks[k][0]:
        k += 1
    if not k:
        return priced(traders, ())
    bid, ask = bids[k - 1][0], asks[k - 1][0]
    next_bid = bids[k][0] if k < len(bids) else limits and limits[0]
    next_ask = asks[k][0] if k < len(asks) else limits and limits[1]
    paid, received = bid, ask
    if next_bid is not None and next_ask is not None and ask <= Fraction(next_bid + next_ask, 2) <= bid:
        paid = received = Fraction(next_bid + next_ask, 2)
    else:
        k -= 1
    return cleared(traders, Counter(name for _, name in bids[:k]), Counter(name for _, name in asks[:k]), paid, received)


def _check_limits(prices: Sequence[Money], limits: tuple[Money, Money]) -> None:
    lowest, highest = (check_money(limit, "a limit") for limit in limits)
    if lowest > highest:
        raise UserError(f"limits from {lowest} to {highest}", "give the lower one first")
    outside = next((price for price in prices if not lowest <= price <= highest), None)
    if outside is not None:
        raise UserError(
            f"a value of {outside} is outside the limits, {lowest} to {highest}", "give limits that hold for all sites"
        )


def draw_halves(traders: Sequence[Trader], seed: int | str) -> tuple[list[Trader], list[Trader]]:
    """Puts each site in one of two halves by a coin, in random order. Only names and the seed matter, not what sites report."""
    chance = random.Random(f"halves {seed}")
    drawn = sorted(traders, key=lambda trader: trader.name)
    chance.shuffle(drawn)
    halves: tuple[list[Trader], list[Trader]] = ([], [])
    for trader in drawn:
        halves[chance.randrange(2)].append(trader)
    return halves


def split_auction(first: Sequence[Trader], second: Sequence[Trader]) -> Clearing:
    """Trades in each half at a price at which the other half's demand equals its supply; no trade between the halves.

    Truthful for several units a site: nobody moves the price at which it trades. Buyers pay what sellers receive. It gives up
    the trades between the halves and those that a half's order of service cuts off. Of the prices at which demand equals
    supply it takes the middle (an assumption; any rule of the other half's reports alone would do). A half in which nobody
    bids or nobody asks sets no price.

    Args:
        first: one half, in the order of service, such as of ``draw_halves``.
        second: the other half.

    Raises:
        UserError: two sites of one name.
    """
    everyone = [*first, *second]
    check_traders(everyone)
    trades: list[Trade] = []
    for half, other in ((first, second), (second, first)):
        price = _middle_price(other)
        if price is not None:
            trades += posted_prices.clear(half, price).trades
    return priced(everyone, trades)


def _middle_price(traders: Sequence[Trader]) -> Fraction | None:
    between = price_range(traders)
    if between is None or not any(trader.bids for trader in traders):
        return None
    return Fraction(sum(between), 2)


__all__ = ["draw_halves", "mcafee", "split_auction"]
