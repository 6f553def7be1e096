"""What a device is worth in each hour of a trace: the dual prices of the linear program that serves all work at least cost.

Work is divisible here, and its hours can be worked in any order: a fluid. The program is a linear production game, so what its
prices pay to the owners of devices and charge to the owners of work is in that game's core (Owen, Mathematical Programming 9,
1975; see ``dual_prices``). The jobs of the trace are not divisible: whether the shares are in the core of the simulated game is
for ``core`` to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.market.federation_state import CLOUD, Demand, Outcome
from paceline.market.site import Federation

MOST_CELLS = 200_000
"""Sites x device types x hours: the linear program has about so many unknowns."""
TAIL_HOURS = 48
"""After the last arrival; what is left then costs as if it waited as long again."""


@dataclass(frozen=True)
class PeriodPrices:
    """Prices by hour.

    Attributes:
        types: device types.
        prices: of a device and hour, in the federation's currency; shape (types, hours).
        backlog_hours: device-hours of work that wait at the end of each hour, in the optimum; shape (sites, hours).
        cost: of the optimum, in the federation's currency.
    """

    types: tuple[str, ...]
    prices: Array
    backlog_hours: Array
    cost: float

    def charge(self, type_index: Ints, start_s: Array, end_s: Array, devices: Ints) -> Array:
        """What devices of a type cost from one moment to another; after the last hour nothing. Arrays of one shape."""
        hours = self.prices.shape[1]
        paid = np.concatenate([np.zeros((len(self.types), 1)), self.prices.cumsum(axis=1)], axis=1)

        def until(moment: Array) -> Array:
            at = np.clip(moment / 3600, 0, hours)
            whole = np.minimum(at.astype(np.int64), hours - 1)
            return np.asarray(paid[type_index, whole] + (at - whole) * self.prices[type_index, whole])

        return (until(end_s) - until(start_s)) * devices


def period_prices(federation: Federation, demand: Demand) -> PeriodPrices:
    """The prices of all sites' work on all sites' devices.

    Minimise the cost of waiting, where an hour of one device's work that waits for an hour costs a site what its jobs' waiting
    costs, divided by their device-hours. Work of a site runs on a device type at the mean speed of its jobs there.

    Raises:
        UserError: more than ``MOST_CELLS`` unknowns.
    """
    sites = len(federation.sites)
    groups = [group.device for site in federation.sites for group in site.fleet.groups]
    types = list(dict.fromkeys(groups))
    of_type = np.array([types.index(device) for device in groups])
    hours = int(demand.arrival_s.max(initial=0.0) // 3600) + 1 + TAIL_HOURS
    if sites * len(types) * hours > MOST_CELLS:
        raise UserError(
            f"prices of {hours:,} hours on {len(types)} device types for {sites} sites",
            "give a shorter trace, or another `rule`",
        )
    work = demand.devices * demand.duration_s / 3600
    comes = np.zeros((sites, hours))
    np.add.at(comes, (demand.site, (demand.arrival_s // 3600).astype(np.int64)), work)
    jobs, total = np.bincount(demand.site, minlength=sites), np.bincount(demand.site, work, sites)
    value = np.array([site.waiting_price for site in federation.sites]) * jobs / np.maximum(total, 1e-12)
    speed = _mean_speeds(demand, of_type, len(types), sites, work)
    capacity = np.bincount(of_type, demand.capacity, len(types))

    # Unknowns: x[site, type, hour] device-hours, then b[site, hour] work that waits. Work is conserved; devices are limited.
    served, waits = sites * len(types) * hours, sites * hours
    x = np.arange(served).reshape(sites, len(types), hours)
    b = served + np.arange(waits).reshape(sites, hours)
    rows = np.arange(waits).reshape(sites, hours)
    conserved = sparse.coo_array(
        (
            np.concatenate([np.repeat(speed.ravel(), hours), np.ones(waits), -np.ones(sites * (hours - 1))]),
            (
                np.concatenate([np.repeat(rows[:, None], len(types), axis=1).ravel(), rows.ravel(), rows[:, 1:].ravel()]),
                np.concatenate([x.ravel(), b.ravel(), b[:, :-1].ravel()]),
            ),
        ),
        shape=(waits, served + waits),
    )
    limits = np.arange(len(types) * hours).reshape(len(types), hours)
    limited = sparse.coo_array(
        (np.ones(served), (np.repeat(limits[None], sites, axis=0).ravel(), x.ravel())), shape=(limits.size, served + waits)
    )
    cost = np.zeros(served + waits)
    cost[served:] = np.repeat(value, hours)
    cost[b[:, -1]] *= TAIL_HOURS
    bounds = np.stack([np.zeros(served + waits), np.full(served + waits, np.inf)], axis=1)
    bounds[:served, 1] = np.where(np.repeat(speed.ravel() > 0, hours), np.inf, 0.0)
    answer = linprog(
        cost,
        A_ub=limited.tocsr(),
        b_ub=np.repeat(capacity, hours).astype(float),
        A_eq=conserved.tocsr(),
        b_eq=comes.ravel(),
        bounds=bounds,
        method="highs",
    )
    if answer.status != 0:
        raise RuntimeError(f"HiGHS found no prices: {answer.message}")
    prices = np.maximum(-answer.ineqlin.marginals, 0.0).reshape(len(types), hours)
    return PeriodPrices(tuple(types), prices, answer.x[served:].reshape(sites, hours), float(answer.fun))


def _mean_speeds(demand: Demand, of_type: Ints, types: int, sites: int, work: Array) -> Array:
    """Of a site's work on each type, shape (sites, types); work that cannot run there does not count."""
    best = np.stack([demand.speed[:, of_type == index].max(axis=1) for index in range(types)], axis=1)
    per_job = best[demand.kind]
    able = np.stack([np.bincount(demand.site, work * (per_job[:, t] > 0), sites) for t in range(types)], axis=1)
    summed = np.stack([np.bincount(demand.site, work * per_job[:, t], sites) for t in range(types)], axis=1)
    return np.asarray(np.divide(summed, able, out=np.zeros_like(summed), where=able > 0))


def price_transfers(federation: Federation, demand: Demand, outcome: Outcome, prices: PeriodPrices) -> Array:
    """What each site receives for devices that it lent, less what it pays; shape (sites,), in sum 0."""
    groups = [group.device for site in federation.sites for group in site.fleet.groups]
    type_of_pool = np.array([prices.types.index(device) for device in groups])
    pool = outcome.run_pool
    inside = pool != CLOUD
    owner, home = demand.pool_site[pool[inside]], demand.site[outcome.run_job[inside]]
    devices = demand.devices[outcome.run_job[inside]]
    paid = prices.charge(type_of_pool[pool[inside]], outcome.run_start_s[inside], outcome.run_end_s[inside], devices)
    paid = np.where((owner >= 0) & (owner != home), paid, 0.0)
    sites = len(federation.sites)
    return np.asarray(np.bincount(np.maximum(owner, 0), paid, sites) - np.bincount(home, paid, sites))


__all__ = ["PeriodPrices", "period_prices", "price_transfers"]
