"""Double auction in which waiting jobs bid for other sites' devices. Each site uses only its own data.

A site bids for a job its loss if the job waited at home, and asks for devices its possible loss by lending them. The good is
one job's run: its owner pays a price per device-hour, for the hours whose work is saved. Sellers receive what buyers pay: the
price lies half way between the lowest winning bid and the highest ask or losing bid below it (Chatterjee and Samuelson,
Bargaining under incomplete information, 1983, with k = 1/2; recalled).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import pdtrc

from paceline.array_types import Array, Ints
from paceline.market.federation.costs import HOUR, energy_prices
from paceline.market.federation.federation_state import FederationOutcome
from paceline.market.federation.simulation import FederationSimulation, begin
from paceline.market.game.savings import Progress, Savings
from paceline.market.prices.period_prices import types_of

INTERVAL_S = 600.0
"""Seconds between two auctions."""
MOST_BIDS = 200
"""Most jobs for which a site bids at a time, the earliest first."""


@dataclass(frozen=True)
class JobAuctions:
    """Result of the auctions of a coalition.

    Attributes:
        outcome: outcome of the jobs.
        price: per device-hour that each run pays, in the currency; 0 at home. Shape (runs,).
        moment_s, cleared: times of trades, and the prices by device type; NaN: no trade. Shapes (trades,), (types, trades).
        types: device types.
    """

    outcome: FederationOutcome
    price: Array
    moment_s: Array
    cleared: Array
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bid:
    """Bid for a run of one job: its devices, and the most it pays per device-hour."""

    job: int
    site: int
    devices: int
    price: float


@dataclass(slots=True)
class Offer:
    """Offer of a pool's devices. ``asks``: the price per device-hour by number of devices taken; it never falls."""

    pool: int
    site: int
    asks: Sequence[float]
    taken: int = 0

    def ask(self, devices: int) -> float:
        """Return the ask for further devices; inf if fewer remain."""
        last = self.taken + devices
        return self.asks[last - 1] if last <= len(self.asks) else math.inf


@dataclass(frozen=True)
class Match:
    """Matches at one price. ``pairs``: bids and pools."""

    pairs: tuple[tuple[Bid, int], ...]
    price: float


def match(bids: Iterable[Bid], offers: Sequence[Offer], lends: Mapping[int, int], borrows: Mapping[int, int]) -> Match:
    """Clear one auction: the highest bid is served first, by the lowest ask with room for the whole job. No site pays more than
    it bids or receives less than it asks, and payments equal receipts.

    Args:
        lends, borrows: devices that each site may still lend, and borrow, by its number.
    """
    served: list[tuple[Bid, int]] = []
    may_lend, may_borrow = dict(lends), dict(borrows)
    floor, lost = 0.0, 0.0
    for bid in sorted(bids, key=lambda each: (-each.price, each.job)):
        if bid.devices > may_borrow[bid.site]:
            continue  # not a loser: it may not trade at any price
        open_to_it = [
            offer
            for offer in offers
            if offer.site != bid.site and bid.devices <= may_lend[offer.site] and offer.ask(bid.devices) < math.inf
        ]
        best = min(open_to_it, key=lambda offer: (offer.ask(bid.devices), offer.taken - len(offer.asks)), default=None)
        if best is None or max(best.ask(bid.devices), floor) > bid.price:
            lost = max(lost, bid.price)
            continue
        floor = max(floor, best.ask(bid.devices))
        best.taken += bid.devices
        may_lend[best.site] -= bid.devices
        may_borrow[bid.site] -= bid.devices
        served.append((bid, best.pool))
    if not served:
        return Match((), math.nan)
    least = served[-1][0].price
    return Match(tuple(served), (least + max(floor, min(lost, least))) / 2)


def run_auctions(
    savings: Savings, members: int | None = None, interval_s: float = INTERVAL_S, progress: Progress | None = None
) -> JobAuctions:
    """Simulate a coalition, with an auction for each device type whenever jobs wait, every ``interval_s`` seconds.

    Own jobs come first at home. Limits of lending and borrowing and notices apply.

    Args:
        members: the coalition's mask; None: all sites.
    """
    return _Market(savings, savings.everyone if members is None else members).run(interval_s, progress)


@dataclass
class _Market:
    savings: Savings
    members: int
    prices: dict[int, float] = field(default_factory=dict)  # by run
    trades: list[tuple[float, int, float]] = field(default_factory=list)  # moment, type, price

    def __post_init__(self) -> None:
        federation, self.demand, self.rules = self.savings.federation, self.savings.demand, self.savings.rules
        self.sites = federation.sites
        pool_type, self.types = types_of(federation)
        self.type_of_pool = pool_type.tolist()
        self.owner = self.demand.pool_site.tolist()
        self.power = energy_prices(federation).tolist()  # of a device and hour
        inside = [site for site in range(len(self.sites)) if self.members >> site & 1]
        self.pools = {site: [pool for pool, owner in enumerate(self.owner) if owner == site] for site in inside}
        self.history = {site: _History.of(self.savings, site) for site in inside}

    def run(self, interval_s: float, progress: Progress | None) -> JobAuctions:
        demand = self.demand
        simulation = begin(demand, self.rules, self.members)
        none = np.zeros(len(self.sites), np.int64)
        simulation.limit(0.0, none, none)
        steps = math.ceil(float(demand.arrival_s.max(initial=0.0)) / interval_s) + 1
        step = 0
        if self.members.bit_count() == 1:  # no site to trade with
            simulation.run_until(math.inf)
        while not simulation.run_until(step * interval_s):
            waiting = simulation.waiting()
            if waiting.size:
                self._hold(step * interval_s, simulation, waiting.tolist())
            elif step > steps:
                simulation.run_until(math.inf)
            step += 1
            if progress:
                progress(min(step, steps), steps)
        return self._answer(simulation.outcome())

    def _answer(self, outcome: FederationOutcome) -> JobAuctions:
        price = np.zeros(len(outcome.run_job))
        for run, paid in self.prices.items():
            price[run] = paid
        moments = sorted({moment for moment, _, _ in self.trades})
        cleared = np.full((len(self.types), len(moments)), math.nan)
        place = {moment: number for number, moment in enumerate(moments)}
        for moment, kind, paid in self.trades:
            cleared[kind, place[moment]] = paid
        return JobAuctions(outcome, price, np.array(moments, float), cleared, self.types)

    def _hold(self, now: float, simulation: FederationSimulation, waiting: Sequence[int]) -> None:
        """Hold one auction for each device type, one after the other."""
        demand = self.demand
        free, lent, borrowed = (list(map(int, each())) for each in (simulation.free, simulation.lent, simulation.borrowed))
        queues: dict[int, list[int]] = {site: [] for site in self.pools}
        for job in waiting:
            queues[int(demand.site[job])].append(job)
        offering = [
            pool for site, pools in self.pools.items() for pool in pools if free[pool] > 0 and self._spare(pool, queues[site])
        ]
        if not offering:
            return
        left, stopped, running = simulation.remaining(), simulation.restarted(), simulation.running()
        homes = {site: self._home_ends(now, running, free, queue[:MOST_BIDS], left) for site, queue in queues.items() if queue}
        for kind in sorted({self.type_of_pool[pool] for pool in offering}):
            pools = [pool for pool in offering if self.type_of_pool[pool] == kind]
            offers = [self._offer(now, pool, free[pool]) for pool in pools]
            bids = []
            for ends in homes.values():
                bids += self._bids(now, ends, pools, left, stopped)
            rooms = (
                {site: max(int(limits[site]) - held[site], 0) for site in self.pools}
                for limits, held in ((self.rules.lends, lent), (self.rules.borrows, borrowed))
            )
            found = match(bids, offers, *rooms)
            for bid, pool in found.pairs:
                self.prices[simulation.start(now, bid.job, pool)] = found.price
                free[pool] -= bid.devices
                lent[self.owner[pool]] += bid.devices
                borrowed[bid.site] += bid.devices
                del homes[bid.site][bid.job]
            if found.pairs:
                self.trades.append((now, kind, found.price))

    def _spare(self, pool: int, queue: Sequence[int]) -> bool:
        """Return whether no job of the pool's owner waits for it."""
        kinds = {int(self.demand.kind[job]) for job in queue}
        return not any(self.demand.speed[kind, pool] > 0 for kind in kinds)

    def _offer(self, now: float, pool: int, free: int) -> Offer:
        """Return the energy price of a device plus the expected loss of own jobs that may need it before its return."""
        site = self.owner[pool]
        risk = self.history[site].loss(now, free, float(self.rules.notice_s[site]))
        return Offer(pool, site, (self.power[pool] + risk).tolist())

    def _home_ends(
        self, now: float, running: tuple[Ints, Ints, Array], free: Sequence[int], queue: Sequence[int], left: Array
    ) -> dict[int, tuple[float, float]]:
        """Return the believed start and end of each waiting job at home if no other job arrives."""
        demand, pools = self.demand, self.pools[int(self.demand.site[queue[0]])]
        at, devices, ends = running
        mine = demand.pool_site[at] == demand.site[queue[0]]
        there = zip(ends[mine].tolist(), at[mine].tolist(), devices[mine].tolist(), strict=True)
        taken = [(max(end, now), pool, count) for end, pool, count in there]
        seconds = {}
        for job in queue:
            speeds = demand.believed[demand.kind[job]]
            able = demand.speed[demand.kind[job]] > 0
            seconds[job] = (int(demand.devices[job]), {pool: float(left[job] / speeds[pool]) for pool in pools if able[pool]})
        return home_ends(now, {pool: free[pool] for pool in pools}, taken, seconds)

    def _bids(
        self,
        now: float,
        ends: Mapping[int, tuple[float, float]],
        pools: Sequence[int],
        left: Array,
        stopped: Ints,
    ) -> list[Bid]:
        """Return a site's bid for each of its waiting jobs: the saving if it starts now, over its device-hours."""
        demand, bids = self.demand, []
        for job, (starts, home_end) in ends.items():
            number, kind, devices = int(demand.site[job]), int(demand.kind[job]), int(demand.devices[job])
            site = self.sites[number]
            able = [pool for pool in pools if self.owner[pool] != number and demand.speed[kind, pool] > 0]
            if not able:
                continue
            again = self.rules.restart_s if stopped[job] else 0.0
            seconds = max(demand.delay_s[kind, pool] + again + left[job] / demand.believed[kind, pool] for pool in able)
            power = devices * min(self.power[pool] for pool in self.pools[number]) * left[job] / HOUR
            leaves = max(demand.arrival_s[job] + demand.patience_s[job], now)
            if starts > leaves and not stopped[job]:  # the public cloud is the alternative
                at_home = float(leaves + left[job]), devices * site.cloud_price * float(left[job]) / HOUR
            else:
                at_home = home_end, power
            moved = demand.data_bytes[kind] + (demand.checkpoint_bytes[kind] if stopped[job] else 0.0)
            saved = site.waiting_price * (at_home[0] - now - seconds) / HOUR + at_home[1]
            saved -= moved / 1e9 * self.savings.federation.wan_price
            if saved > 0:
                bids.append(Bid(job, number, devices, float(saved / (devices * seconds / HOUR))))
        return bids


@dataclass(frozen=True)
class _History:
    """A site's own jobs so far: arrivals, and cumulative devices and durations."""

    arrival_s: Array
    devices: Array
    duration_s: Array
    waiting_price: float

    @classmethod
    def of(cls, savings: Savings, site: int) -> _History:
        mine = savings.demand.site == site
        return cls(
            savings.demand.arrival_s[mine],
            savings.demand.devices[mine].cumsum(),
            savings.demand.duration_s[mine].cumsum(),
            savings.federation.sites[site].waiting_price,
        )

    def loss(self, now: float, free: int, notice_s: float) -> Array:
        """Return the expected loss of lending one more free device for an hour, by the number already lent; shape (free,).

        Jobs arrive as a Poisson process at the observed rate and mean size. Durations are exponential, and a guest stays as
        long as an own job. A job that finds too few free devices waits for half a stay, or for the notice.
        """
        jobs = int(np.searchsorted(self.arrival_s, now))
        if not jobs:
            return np.zeros(free)
        devices, stay = self.devices[jobs - 1] / jobs, self.duration_s[jobs - 1] / jobs
        come = jobs / max(now, stay) * stay * (1 - math.exp(-1))  # of them still there after a stay
        left = free - np.arange(1, free + 1)
        chance = pdtrc(np.floor(left / devices), come)  # of more
        waits = min(notice_s, stay / 2)
        return np.asarray(chance * self.waiting_price * waits / (devices * stay))


def home_ends(
    now: float,
    free: Mapping[int, int],
    taken: Iterable[tuple[float, int, int]],
    jobs: Mapping[int, tuple[int, Mapping[int, float]]],
) -> dict[int, tuple[float, float]]:
    """Return start and end of jobs that wait for a site's own devices, first come first served with greedy backfill.

    Args:
        free: devices by pool. ``taken``: end, pool and devices of current runs.
        jobs: devices, and seconds by pool, of each job in the order of arrival; one that never fits is left out.
    """
    there, ends, now_waiting = dict(free), list(taken), dict(jobs)
    heapq.heapify(ends)
    found: dict[int, tuple[float, float]] = {}
    smallest = min((devices for devices, _ in jobs.values()), default=0)
    while now_waiting:
        for job, (devices, seconds) in list(now_waiting.items()) if max(there.values()) >= smallest else ():
            fits = [(now + long, pool) for pool, long in seconds.items() if there[pool] >= devices]
            if fits:
                end, pool = min(fits)
                there[pool] -= devices
                heapq.heappush(ends, (end, pool, devices))
                found[job] = now, end
                del now_waiting[job]
        if not ends:
            break
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, pool, devices = heapq.heappop(ends)
            there[pool] += devices
    return found
