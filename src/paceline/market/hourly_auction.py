"""A double auction every hour: which site lends how many devices to whom, and at what price, from the sites' own queues.

At each hour every site states what it would pay for further devices, by the jobs that wait there, and what it asks for free
ones, by its own history. McAfee's rule (``mechanisms.double_auction``) clears them. What is bought may be borrowed until the
next hour; a job that starts on borrowed devices pays the price of its hour as long as it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import poisson

from paceline.array_types import Array, Ints
from paceline.errors import UserError
from paceline.market.federation_state import CLOUD, Demand, Outcome
from paceline.market.mechanisms.double_auction import mcafee
from paceline.market.mechanisms.traders import Clearing, Trader
from paceline.market.savings import Progress, Savings
from paceline.market.simulation import begin

HOUR = 3600.0
MICRO = 1_000_000


@dataclass(frozen=True)
class HourlyAuction:
    """What the auctions made of a federation.

    Attributes:
        outcome: of the jobs.
        paid, received: a device and hour, in the currency, by the hour of the auction; NaN: nothing was traded. Shape (hours,).
        units: device-hours sold at each. ``lost_units``: gainful trades that McAfee's rule left out.
    """

    outcome: Outcome
    paid: Array
    received: Array
    units: Ints
    lost_units: Ints

    def charges(self, demand: Demand) -> tuple[Array, Array]:
        """What each run's owner pays, and what its lender gets, shape (runs,); 0 at home.

        Devices that became free within an hour without trades cost what the last trade did.
        """
        pool, start = self.outcome.run_pool, self.outcome.run_start_s
        owner = np.where(pool == CLOUD, -1, demand.pool_site[pool])
        guest = (owner >= 0) & (owner != demand.site[self.outcome.run_job])
        hours = np.where(guest, (self.outcome.run_end_s - start) * demand.devices[self.outcome.run_job] / HOUR, 0.0)
        at = np.minimum((start // HOUR).astype(np.int64), len(self.paid) - 1)
        return hours * _last_known(self.paid)[at], hours * _last_known(self.received)[at]

    def transfers(self, demand: Demand, sites: int) -> tuple[Array, float]:
        """What each site receives less what it pays, shape (sites,), and what the auctioneer keeps."""
        pays, gets = self.charges(demand)
        lender = np.where(self.outcome.run_pool == CLOUD, 0, demand.pool_site[self.outcome.run_pool])
        home = demand.site[self.outcome.run_job]
        received = np.bincount(np.maximum(lender, 0), gets, sites) - np.bincount(home, pays, sites)
        return np.asarray(received), float(pays.sum() - gets.sum())


def _last_known(prices: Array) -> Array:
    """Each price, or the last one before it; 0 before the first."""
    known = np.maximum.accumulate(np.where(np.isnan(prices), -1, np.arange(len(prices))))
    return np.where(known < 0, 0.0, prices[np.maximum(known, 0)])


def run_auctions(savings: Savings, progress: Progress | None = None) -> HourlyAuction:
    """Simulate all sites, with an auction at every hour.

    For each job that waits, a site bids its price of a waiting hour over the job's devices, for as many devices. For a free
    device it asks for the energy, and for what own jobs would lose if they came to need it within the hour: by the mean of its
    past hours, as a Poisson number of devices. A site whose notice is no longer than a checkpoint takes asks for
    the energy alone.

    Raises:
        UserError: sites with devices of several types, which are no identical units.
    """
    federation, demand = savings.federation, savings.demand
    types = {group.device for site in federation.sites for group in site.fleet.groups}
    if len(types) > 1:
        raise UserError(f"an auction of {len(types)} device types", "the auction trades equal devices; use `rule` prices")
    sites = len(federation.sites)
    hours = int(demand.arrival_s.max(initial=0.0) // HOUR) + 2
    simulation = begin(demand, savings.rules, savings.everyone)
    none = np.zeros(sites, np.int64)
    simulation.limit(0.0, none, none)
    paid, received = np.full(hours, math.nan), np.full(hours, math.nan)
    units, lost = np.zeros(hours, np.int64), np.zeros(hours, np.int64)
    came = np.zeros((sites, hours))
    np.add.at(came, (demand.site, (demand.arrival_s // HOUR).astype(np.int64)), demand.devices)
    history = np.cumsum(came, axis=1) / np.arange(1, hours + 1)
    for hour in range(hours):
        simulation.run_until(hour * HOUR)
        expected = history[:, hour - 1] if hour else np.zeros(sites)
        traders = _traders(savings, simulation.waiting(), simulation.free(), simulation.lent(), simulation.borrowed(), expected)
        cleared = mcafee(traders)
        lends, borrows = _limits(cleared, federation.names, simulation.lent(), simulation.borrowed())
        simulation.limit(hour * HOUR, lends, borrows)
        if cleared.trades:
            paid[hour] = float(cleared.trades[0].paid) / MICRO
            received[hour] = float(cleared.trades[0].received) / MICRO
        units[hour], lost[hour] = cleared.units, cleared.lost_units
        if progress:
            progress(hour + 1, hours)
    simulation.run_until(math.inf)
    return HourlyAuction(simulation.outcome(), paid, received, units, lost)


def _traders(savings: Savings, waiting: Ints, free: Ints, lent: Ints, borrowed: Ints, expected: Array) -> list[Trader]:
    """The sites' reports in whole micro-currency a device and hour."""
    federation, demand, rules = savings.federation, savings.demand, savings.rules
    traders = []
    for number, site in enumerate(federation.sites):
        mine = waiting[demand.site[waiting] == number]
        room = max(int(rules.borrows[number] - borrowed[number]), 0)
        bids: list[int] = []
        for devices in demand.devices[mine].tolist():
            bids += [round(site.waiting_price * MICRO / devices)] * devices
        idle = min(int(free[demand.pool_site == number].sum()), max(int(rules.lends[number] - lent[number]), 0))
        asks = _asks(savings, number, 0 if bids else idle, float(expected[number]))
        values = sorted(bids, reverse=True)[:room] if bids else sorted(asks, reverse=True)
        traders.append(Trader(site.name, len(asks), tuple(values)))
    return traders


def _asks(savings: Savings, number: int, idle: int, expected: float) -> list[int]:
    """What a site wants for each of its idle devices, from the one that it needs least."""
    site, demand = savings.federation.sites[number], savings.demand
    watts = site.fleet.groups[0].watts
    energy = watts / 1000 * site.energy_price * site.pue
    if site.notice_s <= savings.rules.save_s or not idle:
        return [round(energy * MICRO)] * idle
    mine = demand.devices[demand.site == number]
    loss = site.waiting_price / float(mine.mean())
    left = idle - np.arange(1, idle + 1)  # devices that stay free when so many are lent
    return [round((energy + loss * chance) * MICRO) for chance in poisson.sf(left, max(expected, 1e-9)).tolist()]


def _limits(cleared: Clearing, names: Sequence[str], lent: Ints, borrowed: Ints) -> tuple[Ints, Ints]:
    """What may be lent and borrowed until the next hour: what is held, and what was traded."""
    bought = np.array([cleared.bought(name) for name in names], np.int64)
    return lent + np.maximum(-bought, 0), borrowed + np.maximum(bought, 0)


__all__ = ["HourlyAuction", "run_auctions"]
