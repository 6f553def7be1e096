"""Value of a device in each hour of a trace: dual prices of the linear program that serves all work at least cost.

Work is divisible here, and its hours can be worked in any order: a fluid. The program is a linear production game, so the
payments at its prices are in that game's core (Owen, Mathematical Programming 9, 1975). Real jobs are not divisible: ``core``
checks whether the shares are in the core of the simulated game.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from paceline.array_types import Array, Bools, Ints
from paceline.errors import UserError
from paceline.market.federation.costs import energy_prices
from paceline.market.federation.federation_state import FederationDemand
from paceline.market.federation.site import Federation

MOST_CELLS = 200_000
"""Most sites x device types x hours. The linear program has at most five times as many unknowns."""
TAIL_HOURS = 48
"""Hours after the last arrival. Work left after them costs as if it waited as long again."""


@dataclass(frozen=True)
class PeriodPrices:
    """Prices by hour.

    Attributes:
        types: device types.
        prices: per device-hour, in the federation's currency; shape (types, hours).
        backlog_hours: device-hours of work that wait at the end of each hour, in the optimum; shape (sites, hours).
        cost: cost of the optimum, in the federation's currency. ``costs``: costs of each site with payments at these prices,
            shape (sites,); they sum to ``cost``.
    """

    types: tuple[str, ...]
    prices: Array
    backlog_hours: Array
    cost: float
    costs: Array

    def charge(self, pool_type: Ints, floor: Array, pool: Ints, start_s: Array, end_s: Array) -> Array:
        """Return the charge of a device between two moments, shape (runs,): at least its owner's energy price.

        Args:
            pool_type: device type of each pool. ``floor``: price of its energy a device and hour; both of shape (pools,).
            pool, start_s, end_s: pool, start and end of each run.
        """
        hours = self.prices.shape[1]
        rates = np.concatenate([np.maximum(self.prices[pool_type], floor[:, None]), floor[:, None]], axis=1)
        paid = np.concatenate([np.zeros((len(floor), 1)), rates[:, :-1].cumsum(axis=1)], axis=1)

        def until(moment: Array) -> Array:
            whole = np.minimum((moment / 3600).astype(np.int64), hours)  # after the last hour only the floor counts
            return np.asarray(paid[pool, whole] + (moment / 3600 - whole) * rates[pool, whole])

        return until(end_s) - until(start_s)


def period_prices(federation: Federation, demand: FederationDemand) -> PeriodPrices:
    """Compute the prices of all sites' work on all sites' devices.

    The program minimises the costs of waiting, energy, the public cloud and bytes between sites. The waiting costs and the
    bytes of a site's jobs are spread evenly over their device-hours. Work of a site runs on a device type at the mean speed of
    its jobs there. Sites lend and borrow within their limits. Devices of a type borrowed in an hour are at most those lent: the
    dual of this constraint is the price.

    Raises:
        UserError: more than ``MOST_CELLS`` sites x types x hours.
    """
    sites, count = federation.sites, len(federation.sites)
    pool_type, types = types_of(federation)
    hours = int(demand.arrival_s.max(initial=0.0) // 3600) + 1 + TAIL_HOURS
    kinds = len(types)
    if count * kinds * hours > MOST_CELLS:
        raise UserError(
            f"prices of {hours:,} hours on {kinds} device types for {count} sites",
            "give a shorter trace, or another `rule`",
        )
    work = demand.devices * demand.duration_s / 3600
    comes = np.zeros((count, hours))
    np.add.at(comes, (demand.site, (demand.arrival_s // 3600).astype(np.int64)), work)
    jobs, total = np.bincount(demand.site, minlength=count), np.maximum(np.bincount(demand.site, work, count), 1e-12)
    waiting = np.array([site.waiting_price for site in sites]) * jobs / total
    moved = np.bincount(demand.site, demand.data_bytes[demand.kind] / 1e9, count) / total * federation.wan_price
    speed = _mean_speeds(demand, pool_type, kinds, count, work)
    owner = demand.pool_site
    capacity, dearest = np.zeros((count, kinds)), np.zeros((count, kinds))
    np.add.at(capacity, (owner, pool_type), demand.capacity)
    np.maximum.at(dearest, (owner, pool_type), energy_prices(federation))
    clouded = [math.isfinite(site.cloud_after_s) for site in sites]

    program = _Program()
    shape = (count, kinds, hours)
    usable, owned = (np.broadcast_to(table[:, :, None], shape) for table in (speed > 0, capacity > 0))
    energy = np.broadcast_to(dearest[:, :, None], shape)
    at_home = program.unknowns(shape, energy, usable & owned)
    lent = program.unknowns(shape, energy, owned)
    borrowed = program.unknowns(shape, np.broadcast_to(moved[:, None, None], shape), usable)
    cloud = program.unknowns(
        (count, hours),
        np.repeat(np.array([[site.cloud_price] for site in sites]), hours, axis=1),
        np.repeat(np.array(clouded)[:, None], hours, axis=1),
    )
    cost_of_waiting = np.repeat(waiting[:, None], hours, axis=1)
    cost_of_waiting[:, -1] *= TAIL_HOURS
    backlog = program.unknowns((count, hours), cost_of_waiting)

    rates = np.broadcast_to(speed[:, :, None], shape)
    cloud_speed = np.bincount(demand.site, work * demand.cloud_speed[demand.kind], count) / total
    program.equal(
        comes,
        [
            *((at_home[:, kind], rates[:, kind]) for kind in range(kinds)),
            *((borrowed[:, kind], rates[:, kind]) for kind in range(kinds)),
            (cloud, np.broadcast_to(cloud_speed[:, None], comes.shape)),
            (backlog, np.ones(comes.shape)),
            (np.concatenate([np.full((count, 1), -1), backlog[:, :-1]], axis=1), -np.ones(comes.shape)),
        ],
    )
    one = np.ones((kinds, hours))
    supply = [(lent[site], -one) for site in range(count)]
    priced = program.at_most(np.zeros((kinds, hours)), [*((borrowed[site], one) for site in range(count)), *supply])
    program.at_most(np.repeat(capacity[:, :, None], hours, axis=2), [(at_home, np.ones(shape)), (lent, np.ones(shape))])
    for used, limits in ((lent, [site.lends for site in sites]), (borrowed, [site.borrows for site in sites])):
        for site, limit in enumerate(limits):
            if limit is not None:
                program.at_most(np.full(hours, float(limit)), [(used[site, kind], np.ones(hours)) for kind in range(kinds)])
    cost, values, duals = program.solve()
    prices = np.maximum(-duals[priced], 0.0)
    own = [(table, program.costs(table)) for table in (at_home, lent, borrowed, cloud, backlog)]
    costs = sum((each * values[table]).reshape(count, -1).sum(axis=1) for table, each in own)
    costs = costs + ((values[borrowed] - values[lent]) * prices).reshape(count, -1).sum(axis=1)
    return PeriodPrices(types, prices, values[backlog], cost, np.asarray(costs))


class _Program:
    """A linear program built from blocks."""

    def __init__(self) -> None:
        self.cost: list[Array] = []
        self.open: list[Bools] = []
        self.blocks: dict[bool, list[tuple[Ints, Ints, Array]]] = {True: [], False: []}
        self.sides: dict[bool, list[Array]] = {True: [], False: []}

    def unknowns(self, shape: tuple[int, ...], cost: Array, usable: Bools | None = None) -> Ints:
        """Add unknowns of at least 0 and return their numbers; unknowns that are not ``usable`` are fixed at 0."""
        first = sum(map(len, self.cost))
        self.cost.append(np.asarray(cost, float).ravel())
        self.open.append(np.ones(shape, bool).ravel() if usable is None else np.asarray(usable).ravel())
        return first + np.arange(math.prod(shape)).reshape(shape)

    def costs(self, unknowns: Ints) -> Array:
        """Return the cost of each unknown."""
        return np.concatenate(self.cost)[unknowns]

    def equal(self, side: Array, terms: Sequence[tuple[Ints, Array]]) -> Ints:
        """Add rows whose sums of coefficient x unknown equal ``side``; unknown -1 means no term. Return the rows' numbers."""
        return self._rows(True, side, terms)

    def at_most(self, side: Array, terms: Sequence[tuple[Ints, Array]]) -> Ints:
        """Add rows whose sums are at most ``side``."""
        return self._rows(False, side, terms)

    def _rows(self, equal: bool, side: Array, terms: Sequence[tuple[Ints, Array]]) -> Ints:
        rows = sum(map(np.size, self.sides[equal])) + np.arange(side.size).reshape(side.shape)
        self.sides[equal].append(side.ravel())
        for unknown, coefficient in terms:
            there = unknown.ravel() >= 0
            self.blocks[equal].append((rows.ravel()[there], unknown.ravel()[there], coefficient.ravel()[there]))
        return rows

    def solve(self) -> tuple[float, Array, Array]:
        """Solve the program. Return the least cost, the unknowns, and the marginals of the rows of ``at_most``."""
        cost = np.concatenate(self.cost)
        matrices = {}
        for equal, blocks in self.blocks.items():
            rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
            matrices[equal] = sparse.coo_array((values, (rows, columns)), shape=(int(rows.max()) + 1, len(cost))).tocsr()
        answer = linprog(
            cost,
            A_ub=matrices[False],
            b_ub=np.concatenate(self.sides[False]),
            A_eq=matrices[True],
            b_eq=np.concatenate(self.sides[True]),
            bounds=np.stack([np.zeros(len(cost)), np.where(np.concatenate(self.open), np.inf, 0.0)], axis=1),
            method="highs",
        )
        if answer.status != 0:
            raise RuntimeError(f"HiGHS found no prices: {answer.message}")
        return float(answer.fun), answer.x, answer.ineqlin.marginals


def _mean_speeds(demand: FederationDemand, pool_type: Ints, types: int, sites: int, work: Array) -> Array:
    """Return the believed mean speed of a site's work on each type, (sites, types), without work that cannot run there."""
    best = np.stack([demand.believed[:, pool_type == index].max(axis=1) for index in range(types)], axis=1)
    per_job = best[demand.kind]
    able = np.stack([np.bincount(demand.site, work * (per_job[:, t] > 0), sites) for t in range(types)], axis=1)
    summed = np.stack([np.bincount(demand.site, work * per_job[:, t], sites) for t in range(types)], axis=1)
    return np.asarray(np.divide(summed, able, out=np.zeros(able.shape), where=able > 0))


def types_of(federation: Federation) -> tuple[Ints, tuple[str, ...]]:
    """Return the device type of each pool by its number, and the types."""
    groups = [group.device for site in federation.sites for group in site.fleet.groups]
    types = tuple(dict.fromkeys(groups))
    return np.array([types.index(device) for device in groups], np.int64), types
