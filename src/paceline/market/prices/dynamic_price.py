"""Price of a device-hour at which sites would rent devices to each other for the whole trace.

Each site values devices by the simulated cost of its jobs on different numbers of devices. ``price_process`` finds where demand
meets supply. Complementary bursts at other sites do not count here, unlike in lending job by job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.market.game.savings import Savings
from paceline.market.prices.price_process import PriceProcess, price_process
from paceline.market.sharing.simulated_game import span_hours

MOST_SIZES = 129
"""Number of device counts simulated for each site."""
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Worth:
    """Hourly value of one further device for a site.

    Attributes:
        devices: bought; negative if sold; shape (points,), ascending. ``marginal``: value there, never rising; linear between
            the points, constant beyond the ends.
        low, high: limits of selling and buying.
    """

    devices: Array
    marginal: Array
    low: int
    high: int

    @property
    def steepest(self) -> float:
        """Steepest fall of the marginal value per device."""
        return float((-np.diff(self.marginal) / np.diff(self.devices)).max(initial=0.0))


@dataclass(frozen=True)
class DynamicPrice:
    """End state of the price process.

    Attributes:
        worths: values of devices for the sites. ``process``: prices of a device-hour, and devices that each site buys.
    """

    worths: tuple[Worth, ...]
    process: PriceProcess

    def to_json(self) -> dict[str, Any]:
        """Return plain values; without a price if the process does not converge."""
        found = self.process
        return {
            "price": found.price if found.converged else math.nan,
            "converged": found.converged,
            "oscillates": found.oscillates,
            "period_steps": found.period,
            "steps": len(found.prices) - 1,
            "bought": found.quantities[-1].tolist(),
        }


def worth(savings: Savings, site: int) -> Worth:
    """Return the value of devices for a site, from simulations of the site alone with fewer and more devices.

    A site sells at most what it may lend, and keeps the devices that its own jobs need on average and for the largest job. Its
    cost is convex in the devices (the lower hull): it may alternate between two numbers of devices.
    """
    demand, owner = savings.demand, savings.federation.sites[site]
    mine, pools = demand.site == site, np.flatnonzero(demand.pool_site == site)
    own, everyone = owner.fleet.devices, int(demand.capacity.sum())
    hours = span_hours(savings)
    work = float((demand.devices * demand.duration_s)[mine].sum()) / 3600 / hours
    needs = max(math.ceil(work), int(demand.devices[mine].max()))
    low = max(-own if owner.lends is None else -owner.lends, min(needs - own, 0))
    high = min(everyone - own, everyone if owner.borrows is None else owner.borrows)
    pool = pools[np.argmax(demand.capacity[pools])]
    sizes = np.unique(np.linspace(low, high, MOST_SIZES).round().astype(int))
    costs = []
    for size in sizes.tolist():
        capacity = demand.capacity.copy()
        capacity[pools], capacity[pool] = 0, own + size
        changed = savings.changed(demand=replace(demand, capacity=capacity))
        costs.append(float(changed.costs(1 << site).total[site]) / hours)
    corners = _lower_hull(sizes.astype(float), np.array(costs))
    if len(corners) < 2:
        return Worth(np.zeros(1), np.zeros(1), low, high)
    at, cost = sizes[corners].astype(float), np.array(costs)[corners]
    return Worth((at[1:] + at[:-1]) / 2, np.maximum(-np.diff(cost) / np.diff(at), 0.0), low, high)


def _lower_hull(x: Array, y: Array) -> list[int]:
    """Return the indices of the corners of the lower convex hull; ``x`` ascends."""
    kept: list[int] = []
    for point in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[point] - x[a]) < (y[point] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(point)
    return kept


def dynamic_price(savings: Savings) -> DynamicPrice:
    """Follow a price from 0 that rises while demand exceeds supply.

    Raises:
        UserError: devices of several types, which have no single price.
    """
    types = {group.device for site in savings.federation.sites for group in site.fleet.groups}
    if len(types) > 1:
        raise UserError(f"one price of {len(types)} device types", "a dynamic price is of equal devices: leave out `dynamic`")
    worths = tuple(worth(savings, site) for site in range(len(savings.federation.sites)))
    steepest = max(each.steepest for each in worths) or max(float(each.marginal.max()) for each in worths) or 1.0

    def gradient(price: float, quantities: Array) -> Array:
        pairs = zip(worths, quantities.tolist(), strict=True)
        return np.array([np.interp(bought, each.devices, each.marginal) for each, bought in pairs]) - price

    found = price_process(
        gradient,
        np.array([each.low for each in worths], float),
        np.array([each.high for each in worths], float),
        kappa=steepest / (64 * len(worths)),  # both rates are stable where the value is steepest
        step=1 / steepest,
        most_steps=MOST_STEPS,
    )
    return DynamicPrice(worths, found)
