"""Posted prices: one price for each resource and period, known before anybody trades.

Sites trade as much as they like at the price. Where more is wanted than offered, or the other way round, they are served in a
given order. Nobody trades at a loss, and buyers pay what sellers receive. A price that does not depend on what a site reports
leaves it nothing to gain from a false report; the prices of the linear program do depend on the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from paceline.errors import UserError, shown
from paceline.market.mechanisms.traders import Clearing, Money, Trader, check_money, check_traders, cleared, price_range

Good = TypeVar("Good", bound=Hashable)
"""What is traded: such as (device type, period)."""


def clear(traders: Sequence[Trader], price: Money) -> Clearing:
    """Trades at one price.

    A site sells each own unit that it values below the price and buys each further unit that it values above. Units valued at
    the price itself move only where the other side needs them. The long side is served in the order of ``traders``. That order
    must not depend on what they report: shuffle it by a number that is known before.

    Raises:
        UserError: an inexact or negative price, or two traders of one name.
    """
    price = check_money(price, "a price")
    check_traders(traders)
    eager_buyers = {trader.name: _units(trader.bids, lambda bid: bid > price) for trader in traders}
    ready_buyers = {trader.name: _units(trader.bids, lambda bid: bid >= price) for trader in traders}
    eager_sellers = {trader.name: _units(trader.asks, lambda ask: ask < price) for trader in traders}
    ready_sellers = {trader.name: _units(trader.asks, lambda ask: ask <= price) for trader in traders}
    demand, most_demand = sum(eager_buyers.values()), sum(ready_buyers.values())
    supply, most_supply = sum(eager_sellers.values()), sum(ready_sellers.values())
    units = min(max(demand, supply), most_demand, most_supply)
    bought = _served(traders, units, eager_buyers, ready_buyers)
    sold = _served(traders, units, eager_sellers, ready_sellers)
    return cleared(traders, bought, sold, price, price)


def _units(values: Sequence[Money], wanted: Callable[[Money], bool]) -> int:
    return sum(map(wanted, values))


def _served(traders: Sequence[Trader], units: int, eager: Mapping[str, int], ready: Mapping[str, int]) -> dict[str, int]:
    """Units by trader: first what all gain from, in order, then what they are indifferent to."""
    served: dict[str, int] = {}
    for trader in traders:
        served[trader.name] = min(eager[trader.name], units)
        units -= served[trader.name]
    for trader in traders:
        more = min(ready[trader.name] - eager[trader.name], units)
        served[trader.name] += more
        units -= more
    return served


def dual_prices(markets: Mapping[Good, Sequence[Trader]]) -> dict[Good, Money]:
    """The price of each resource and period: the dual value of its supply in the linear program of the largest total value.

        maximise   sum of value[i] x[i]      x[i] from 0 to 1, one for each unit that a site may use
        subject to sum of x[i] <= units owned, for each resource and period

    Such a price makes the efficient allocation an equilibrium (Owen, On the core of linear production games, 1975, recalled).
    The solver's floating-point dual is put on the exact value that it stands for. Where all units are not used, the price is
    0. Where nobody owns a unit it is the highest value, at which none is missing.

    Args:
        markets: sites by what is traded. Their values are separate: a device of one type does not replace one of another.

    Raises:
        UserError: two traders of one name in a market.
    """
    for traders in markets.values():
        check_traders(traders)
    rows, values = [], []
    for row, traders in enumerate(markets.values()):
        worths = [value for trader in traders for value in trader.values]
        rows += [row] * len(worths)
        values += worths
    if not values:
        return dict.fromkeys(markets, 0)
    owned = [sum(trader.owned for trader in traders) for traders in markets.values()]
    scale = float(max(values)) or 1.0  # the solver's tolerances are absolute
    use = csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), shape=(len(markets), len(rows)))
    solved = linprog([-float(value) / scale for value in values], A_ub=use, b_ub=owned, bounds=(0, 1), method="highs")
    if solved.status != 0:
        raise UserError(f"no prices: the solver says {shown(solved.message)}", "check the values and the units owned")
    duals = -solved.ineqlin.marginals * scale
    return {good: _exact(traders, float(dual)) for (good, traders), dual in zip(markets.items(), duals, strict=True)}


def _exact(traders: Sequence[Trader], dual: float) -> Money:
    """The value of a trader that the dual stands for, in the range where demand equals supply."""
    values: list[Money] = [0, *(value for trader in traders for value in trader.values)]
    between = price_range(traders)
    if between is None:
        return max(values)
    lowest, highest = between
    return min((value for value in values if lowest <= value <= highest), key=lambda value: abs(float(value) - dual))


def clear_all(markets: Mapping[Good, Sequence[Trader]], prices: Mapping[Good, Money] | None = None) -> dict[Good, Clearing]:
    """Trades in every market at its price.

    Args:
        prices: by what is traded; the dual prices where none are given.

    Raises:
        UserError: a market without a price; as ``clear``.
    """
    posted = dual_prices(markets) if prices is None else prices
    missing = next((good for good in markets if good not in posted), None)
    if missing is not None:
        raise UserError(f"no price for {shown(missing)}", "post one for each resource and period")
    return {good: clear(traders, posted[good]) for good, traders in markets.items()}


__all__ = ["clear", "clear_all", "dual_prices"]
