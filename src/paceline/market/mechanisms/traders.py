"""What every market with money shares: traders with decreasing marginal values, trades, and the largest possible gain.

Money is exact: whole micro-currency or a ``Fraction``. Sums of payments are therefore equal, not nearly equal.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, pairwise
from numbers import Integral, Rational

from paceline.errors import UserError, check_count, shorten, shown

Money = int | Fraction


def check_money(value: object, what: str) -> Money:
    """``value`` as exact money, not negative.

    Raises:
        UserError: a float, a negative amount, or no number.
    """
    if isinstance(value, bool) or not isinstance(value, Rational):
        raise UserError(f"{what} of {shown(value)}", "give whole micro-currency or a Fraction, so that sums are exact")
    if value < 0:
        raise UserError(f"{what} of {value} is negative", "give 0 or more")
    return int(value) if isinstance(value, Integral) else Fraction(value)


@dataclass(frozen=True)
class Trader:
    """A site in a market of identical units, such as device-hours of one type in one period.

    Args:
        name: of the site.
        owned: units that it brings.
        values: marginal value of its first, second, ... unit, in money. None is above the one before. Units beyond are worth 0.

    Raises:
        UserError: values that rise, are negative or inexact, or a negative number of units.
    """

    name: str
    owned: int
    values: tuple[Money, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "owned", check_count(self.owned, f"units owned by {shorten(self.name, 40)!r}", 0))
        exact = tuple(check_money(value, f"a value of {shorten(self.name, 40)!r}") for value in self.values)
        object.__setattr__(self, "values", exact)
        for first, second in pairwise(exact):
            if second > first:
                raise UserError(
                    f"{shorten(self.name, 40)!r} values a further unit more ({second}) than the one before ({first})",
                    "give marginal values from the highest down",
                )

    @property
    def bids(self) -> tuple[Money, ...]:
        """What it pays at most for each unit beyond its own, from the highest down."""
        return self.values[self.owned :]

    @property
    def asks(self) -> tuple[Money, ...]:
        """What it takes at least for each of its own units, from the lowest up. A unit without use is asked at 0."""
        used = self.values[: self.owned]
        return (0,) * (self.owned - len(used)) + used[::-1]

    def value(self, units: int) -> Money:
        """What it gains from using some units."""
        return sum(self.values[:units])

    def payoff(self, bought: int, payment: Money) -> Money:
        """What it gains beside staying alone.

        Args:
            bought: units it gets beyond its own; negative where it sells.
            payment: money it pays; negative where it receives.
        """
        return self.value(self.owned + bought) - self.value(self.owned) - payment


@dataclass(frozen=True)
class Trade:
    """Units that go from a seller to a buyer. ``paid`` and ``received`` are prices of one unit."""

    buyer: str
    seller: str
    units: int
    paid: Money
    received: Money


@dataclass(frozen=True)
class Clearing:
    """Who trades with whom, and what it is worth by the reported values.

    Args:
        trades: no two of them have the same buyer and seller.
        efficient_units: units that change hands where the gain is largest and no unit moves without a gain.
        gain: value that the trades create.
        efficient_gain: the most that trades could create.
    """

    trades: tuple[Trade, ...]
    efficient_units: int
    gain: Money
    efficient_gain: Money

    @property
    def units(self) -> int:
        """Units that change hands."""
        return sum(trade.units for trade in self.trades)

    @property
    def lost_units(self) -> int:
        """Gainful trades that do not happen."""
        return max(0, self.efficient_units - self.units)

    @property
    def lost_gain(self) -> Money:
        """Value that the mechanism gives up."""
        return self.efficient_gain - self.gain

    @property
    def surplus(self) -> Money:
        """Money that the auctioneer keeps: what buyers pay beyond what sellers receive."""
        return sum(trade.units * (trade.paid - trade.received) for trade in self.trades)

    def bought(self, name: str) -> int:
        """Units that a trader gets beyond its own; negative where it sells."""
        return sum(t.units for t in self.trades if t.buyer == name) - sum(t.units for t in self.trades if t.seller == name)

    def payment(self, name: str) -> Money:
        """Money that a trader pays; negative where it receives."""
        paid = sum(t.units * t.paid for t in self.trades if t.buyer == name)
        return paid - sum(t.units * t.received for t in self.trades if t.seller == name)


def check_traders(traders: Sequence[Trader]) -> None:
    """Raises UserError where two traders have one name."""
    names = [trader.name for trader in traders]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two traders are named {shorten(twice, 40)!r}", "give each one a name of its own")


def sorted_bids(traders: Sequence[Trader]) -> list[tuple[Money, str]]:
    """Every bid with its trader, the highest first. Of equal ones the earlier trader's is first."""
    return sorted(((bid, trader.name) for trader in traders for bid in trader.bids), key=lambda entry: -entry[0])


def sorted_asks(traders: Sequence[Trader]) -> list[tuple[Money, str]]:
    """Every ask with its trader, the lowest first. Of equal ones the earlier trader's is first."""
    return sorted(((ask, trader.name) for trader in traders for ask in trader.asks), key=lambda entry: entry[0])


def efficient_holdings(traders: Sequence[Trader]) -> dict[str, int]:
    """Units that each trader uses where the total value is largest. Between equal values a unit stays with its owner."""
    left = sum(trader.owned for trader in traders)
    holdings = {trader.name: 0 for trader in traders}
    order = count()
    # A heap of each trader's next unit; a unit that it owns goes before an equal one that it would have to buy.
    heads = [(-trader.values[0], trader.owned == 0, next(order), trader) for trader in traders if trader.values]
    heapq.heapify(heads)
    while left and heads:
        value, _, place, trader = heads[0]
        if value == 0:
            break
        holdings[trader.name] += 1
        left -= 1
        held = holdings[trader.name]
        if held < len(trader.values):
            heapq.heapreplace(heads, (-trader.values[held], held >= trader.owned, place, trader))
        else:
            heapq.heappop(heads)
    return holdings


def most_value(traders: Sequence[Trader], units: int | None = None) -> Money:
    """The largest total value of some units, of all that the traders own where none is given."""
    held = sum(trader.owned for trader in traders) if units is None else units
    return sum(sorted((value for trader in traders for value in trader.values), reverse=True)[:held])


def price_range(traders: Sequence[Trader]) -> tuple[Money, Money] | None:
    """The lowest and the highest price at which demand equals supply; None where nobody owns a unit.

    Between the first value that is not served and the last one that is: Gul and Stacchetti, Walrasian equilibrium with gross
    substitutes, 1999, for identical units (recalled).
    """
    owned = sum(trader.owned for trader in traders)
    if not owned:
        return None
    ranked = sorted((value for trader in traders for value in trader.values), reverse=True)
    ranked += [0] * (owned + 1 - len(ranked))
    return ranked[owned], ranked[owned - 1]


def cleared(
    traders: Sequence[Trader], bought: Mapping[str, int], sold: Mapping[str, int], paid: Money = 0, received: Money = 0
) -> Clearing:
    """Pairs buyers with sellers, in order, and says what is gained. A trader on both sides trades only the difference.

    Args:
        bought: units by buyer; the total is that of ``sold``.
        paid: by a buyer for a unit.
        received: by a seller for a unit.
    """
    net = {trader.name: bought.get(trader.name, 0) - sold.get(trader.name, 0) for trader in traders}
    sellers = deque((name, -units) for name, units in net.items() if units < 0)
    trades = []
    for buyer, wanted in net.items():
        while wanted > 0:
            seller, offered = sellers.popleft()
            units = min(wanted, offered)
            trades.append(Trade(buyer, seller, units, paid, received))
            wanted -= units
            if offered > units:
                sellers.appendleft((seller, offered - units))
    return priced(traders, trades)


def priced(traders: Sequence[Trader], trades: Sequence[Trade]) -> Clearing:
    """The clearing of some trades: what they gain and what is lost beside the efficient ones."""
    alone = sum(trader.value(trader.owned) for trader in traders)
    best = efficient_holdings(traders)
    moved = sum(max(0, best[trader.name] - trader.owned) for trader in traders)
    held = {trader.name: trader.owned for trader in traders}
    for trade in trades:
        held[trade.buyer] += trade.units
        held[trade.seller] -= trade.units
    gain = sum(trader.value(held[trader.name]) for trader in traders) - alone
    return Clearing(tuple(trades), moved, gain, most_value(traders) - alone)


__all__ = [
    "Clearing",
    "Money",
    "Trade",
    "Trader",
    "check_money",
    "check_traders",
    "cleared",
    "efficient_holdings",
    "most_value",
    "price_range",
    "priced",
    "sorted_asks",
    "sorted_bids",
]
