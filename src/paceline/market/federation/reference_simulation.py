"""Simulation of a federation in Python. ``csrc/federation.cpp`` gives the same numbers, faster."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.market.federation.federation_state import CLOUD, FederationDemand, FederationOutcome, Rules

_END, _EVICTION, _ARRIVAL, _DEADLINE = range(4)


class ReferenceSimulation:
    """The event loop of one federation."""

    def __init__(self, demand: FederationDemand, rules: Rules, members: int) -> None:
        self.demand, self.rules = demand, rules
        sites, pools, kinds = len(rules.lends), len(demand.capacity), len(demand.speed)
        jobs = len(demand.arrival_s)
        self.free_devices = [
            int(devices) if site < 0 or members >> site & 1 else 0
            for devices, site in zip(demand.capacity.tolist(), demand.pool_site.tolist(), strict=True)
        ]
        self.guests = [0] * pools  # devices of guests without notice
        self.coming = [0] * pools  # devices of guests under notice
        self.lent_devices, self.borrowed_devices = [0] * sites, [0] * sites
        self.credit, self.credit_at = [0.0] * sites, 0.0  # device-seconds lent less borrowed
        self.past_credit = [0.0] * sites  # integral of the credit over time
        self.queues: list[list[int]] = [[] for _ in range(kinds)]  # job numbers are in order of arrival
        self.held: dict[int, tuple[int, float, float, int]] = {}  # job: pool, start, begin of work, number of the run
        self.leaving: set[int] = set()  # runs under notice
        self.work_left = demand.duration_s.tolist()
        self.restarts = [0] * jobs
        self.first_start, self.end = [math.nan] * jobs, [math.nan] * jobs
        self.runs: list[tuple[int, int, float, float]] = []
        self.events: list[tuple[float, int, int, int]] = []  # moment, what, job, run
        members_of = [index for index, site in enumerate(demand.site.tolist()) if members >> site & 1]
        self.arrivals = iter(members_of)
        self.arrival = next(self.arrivals, None)
        self.members = members

    def run_until(self, moment: float) -> bool:
        """Process all events before a moment. Return whether no event is left."""
        demand = self.demand
        while self.arrival is not None or self.events:
            now = min(
                self.events[0][0] if self.events else math.inf,
                math.inf if self.arrival is None else float(demand.arrival_s[self.arrival]),
            )
            if now >= moment:
                return False
            freed = False
            while self.events and self.events[0][0] == now and self.events[0][1] < _ARRIVAL:
                freed |= self._leave(*heapq.heappop(self.events))
            self._arrive(now, freed)
            while self.events and self.events[0][0] == now and self.events[0][1] == _DEADLINE:
                if self._overflow(now, heapq.heappop(self.events)[2]):
                    self._dispatch(now)  # devices reserved for it are free for others
        return True

    def limit(self, now: float, lends: Ints, borrows: Ints) -> None:
        """Change the limits from now on, and start the jobs that then fit."""
        self.rules = replace(self.rules, lends=lends, borrows=borrows)
        self._dispatch(now)

    def start(self, now: float, job: int, pool: int) -> int:
        """Start a waiting job in a pool with room, regardless of limits. Return the number of its run."""
        if not (0 <= job < len(self.end) and 0 <= pool < len(self.free_devices)):
            raise ValueError("no such job or pool")
        kind = int(self.demand.kind[job])
        if job not in self.queues[kind]:
            raise ValueError("the job does not wait")
        if self.free_devices[pool] < self.demand.devices[job] or self.demand.speed[kind, pool] <= 0:
            raise ValueError("the job does not fit there")
        self._hold(now, job, pool)
        return len(self.runs) - 1

    def remaining(self) -> Array:
        """Return the work in seconds at home that each job had left when it last started or stopped."""
        return np.array(self.work_left, float)

    def restarted(self) -> Ints:
        """Return how often each job was evicted."""
        return np.array(self.restarts, np.int64)

    def running(self) -> tuple[Ints, Ints, Array]:
        """Return pool, devices and believed end of the current runs, in order of their jobs."""
        demand, held = self.demand, sorted(self.held.items())
        return (
            np.array([pool for _, (pool, *_) in held], np.int64),
            np.array([demand.devices[job] for job, _ in held], np.int64),
            np.array(
                [
                    works + self.work_left[job] / float(demand.believed[demand.kind[job], pool])
                    for job, (pool, _, works, _) in held
                ],
                float,
            ),
        )

    def waiting(self) -> Ints:
        """Return the waiting jobs."""
        return np.array(sorted(job for queue in self.queues for job in queue), np.int64)

    def free(self) -> Ints:
        """Return the free devices of each pool."""
        return np.array(self.free_devices, np.int64)

    def lent(self) -> Ints:
        """Return the devices that each site lends."""
        return np.array(self.lent_devices, np.int64)

    def borrowed(self) -> Ints:
        """Return the devices that each site borrows."""
        return np.array(self.borrowed_devices, np.int64)

    def outcome(self) -> FederationOutcome:
        """Return the outcome so far."""
        return FederationOutcome.of_lists(self.first_start, self.end, self.restarts, self.runs)

    def _arrive(self, now: float, freed: bool) -> None:
        """Queue all jobs that arrive at a moment, then start jobs, so that an owner's job comes before a guest.

        Args:
            freed: devices became free at this moment, so any kind may start.
        """
        demand, arrived, first_of_kind = self.demand, [], []
        while self.arrival is not None and demand.arrival_s[self.arrival] == now:
            job = self.arrival
            kind = int(demand.kind[job])
            if not self.queues[kind]:  # else the job before it does not fit either
                first_of_kind.append(kind)
            heapq.heappush(self.queues[kind], job)
            arrived.append(job)
            self.arrival = next(self.arrivals, None)
        if freed:
            self._dispatch(now)
        elif first_of_kind:
            self._dispatch(now, first_of_kind)
        for job in arrived:
            deadline = float(demand.patience_s[job])
            if math.isnan(self.first_start[job]) and deadline < math.inf:
                heapq.heappush(self.events, (now + deadline, _DEADLINE, job, 0))

    def _overflow(self, now: float, job: int) -> bool:
        """Send a job that never started to the public cloud. Return whether it went."""
        if not math.isnan(self.first_start[job]):
            return False
        self._leave_queue(job)
        end = now + self.work_left[job] / float(self.demand.cloud_speed[self.demand.kind[job]])
        self.first_start[job], self.end[job] = now, end
        self.runs.append((job, CLOUD, now, end))
        return True

    def _leave_queue(self, job: int) -> None:
        queue = self.queues[int(self.demand.kind[job])]
        queue.remove(job)
        heapq.heapify(queue)

    def _leave(self, now: float, event: int, job: int, run: int) -> bool:
        """End a run, or evict it for the owner of its devices. Return whether devices became free."""
        held = self.held.get(job)
        if held is None or held[3] != run:
            return False  # it ended before the notice
        pool, start, works, _ = held
        demand, devices, home = self.demand, int(self.demand.devices[job]), int(self.demand.site[job])
        lender = int(demand.pool_site[pool])
        del self.held[job]
        self.free_devices[pool] += devices
        self.runs[run] = (job, pool, start, now)
        if lender >= 0 and lender != home:
            self._settle_credit(now)
            self.lent_devices[lender] -= devices
            self.borrowed_devices[home] -= devices
            if run in self.leaving:
                self.leaving.discard(run)
                self.coming[pool] -= devices
            else:
                self.guests[pool] -= devices
        if event == _END:
            self.end[job] = now
            return True
        kind = int(demand.kind[job])
        self.work_left[job] -= self._surviving_work(now, works, lender) * float(demand.speed[kind, pool])
        self.restarts[job] += 1
        heapq.heappush(self.queues[kind], job)
        return True

    def _surviving_work(self, now: float, works: float, lender: int) -> float:
        """Return the seconds of work that survive an eviction. A job saves during a notice that is long enough."""
        rules = self.rules
        done = max(now - works, 0.0)
        if rules.notice_s[lender] >= rules.save_s:
            return max(done - rules.save_s, 0.0)
        return math.floor(done / rules.checkpoint_s) * rules.checkpoint_s

    def _settle_credit(self, now: float) -> None:
        passed = now - self.credit_at
        if passed:
            for site, balance in enumerate(self.credit):
                change = (self.lent_devices[site] - self.borrowed_devices[site]) * passed
                self.past_credit[site] += (balance + 0.5 * change) * passed
                self.credit[site] = balance + change
            self.credit_at = now

    def _rank(self, kind: int) -> tuple[float, int, float, int]:
        """Return the order of service of a kind's first job: the smallest is first.

        If two sites have equal credit, the site that borrows less now is first. Then comes the site that had more credit over
        time, which was second at the last tie.
        """
        job, site = self.queues[kind][0], int(self.demand.kind_site[kind])
        if not self.rules.by_credit:
            return 0.0, 0, 0.0, job
        borrows = self.borrowed_devices[site] - self.lent_devices[site]
        return -self.credit[site], borrows, -self.past_credit[site], job

    def _order(self, now: float, kinds: Iterable[int]) -> Iterator[int]:
        """Yield the kinds with waiting jobs, in the order in which their first jobs are served."""
        self._settle_credit(now)
        heap = [(self._rank(kind), kind) for kind in kinds if self.queues[kind]]
        heapq.heapify(heap)
        while heap:
            rank, kind = heapq.heappop(heap)
            current = self._rank(kind)
            if current > rank:  # its site has borrowed since
                heapq.heappush(heap, (current, kind))
                continue
            job = self.queues[kind][0]
            yield kind
            if self.queues[kind] and self.queues[kind][0] != job:
                heapq.heappush(heap, (self._rank(kind), kind))

    def _dispatch(self, now: float, kinds: Sequence[int] | None = None) -> None:
        """Start the jobs that fit, in order, each where it ends first. Jobs that do not fit do not block others.

        Args:
            kinds: the kinds that may now start; None: any.
        """
        home_first = self.rules.home_first
        able = range(len(self.queues)) if kinds is None else kinds
        if home_first:
            for kind in self._order(now, able):
                self._start(now, kind, True, set())
        reserved = {pool for pool, _ in self._wanted()} if home_first else set()
        for kind in self._order(now, able):
            self._start(now, kind, False, reserved)
        if home_first:  # after jobs have started at other sites, so that no guest leaves for a job that need not wait
            for pool, devices in list(self._wanted()):
                self._notify(now, pool, devices - self.free_devices[pool] - self.coming[pool])

    def _start(self, now: float, kind: int, at_home: bool, reserved: set[int]) -> None:
        """Start the first job of a kind in the pool where it ends first, if it fits anywhere."""
        demand, rules = self.demand, self.rules
        job, home = self.queues[kind][0], int(demand.kind_site[kind])
        devices = int(demand.devices[job])
        best: tuple[float, bool, int, float, int] | None = None  # end as believed, guest, devices left, owner's credit, pool
        extra = rules.restart_s if self.restarts[job] else 0.0
        for pool, free in enumerate(self.free_devices):
            speed, lender = float(demand.speed[kind, pool]), int(demand.pool_site[pool])
            if speed <= 0 or free < devices:
                continue
            guest = lender >= 0 and lender != home
            if guest and (
                at_home
                or pool in reserved
                or self.lent_devices[lender] + devices > rules.lends[lender]
                or self.borrowed_devices[home] + devices > rules.borrows[home]
            ):
                continue
            end = now + (float(demand.delay_s[kind, pool]) + extra + self.work_left[job] / float(demand.believed[kind, pool]))
            lent = self.credit[lender] if guest else 0.0
            if best is None or (end, guest, -free, lent, pool) < best:
                best = (end, guest, -free, lent, pool)
        if best is None:
            return
        self._hold(now, job, best[-1])

    def _hold(self, now: float, job: int, pool: int) -> None:
        """Start a waiting job in a pool."""
        demand, home, devices = self.demand, int(self.demand.site[job]), int(self.demand.devices[job])
        kind, lender = int(demand.kind[job]), int(demand.pool_site[pool])
        wait = float(demand.delay_s[kind, pool]) + (self.rules.restart_s if self.restarts[job] else 0.0)
        self._leave_queue(job)
        self.free_devices[pool] -= devices
        if lender >= 0 and lender != home:
            self._settle_credit(now)
            self.lent_devices[lender] += devices
            self.borrowed_devices[home] += devices
            self.guests[pool] += devices
        if math.isnan(self.first_start[job]):
            self.first_start[job] = now
        run = len(self.runs)
        self.runs.append((job, pool, now, math.nan))
        self.held[job] = (pool, now, now + wait, run)
        heapq.heappush(self.events, (now + (wait + self.work_left[job] / float(demand.speed[kind, pool])), _END, job, run))

    def _wanted(self) -> Iterator[tuple[int, int]]:
        """Yield pools in which waiting jobs of the owner would fit if guests left, and the devices of those jobs."""
        demand, rules = self.demand, self.rules
        for pool, lender in enumerate(demand.pool_site.tolist()):
            if lender < 0 or math.isinf(rules.notice_s[lender]) or not (self.guests[pool] or self.coming[pool]):
                continue
            waiting = sorted(
                (queue[0], kind)
                for kind, queue in enumerate(self.queues)
                if queue and demand.kind_site[kind] == lender and demand.speed[kind, pool] > 0
            )
            wanted = 0
            for job, _ in waiting:
                devices = int(demand.devices[job])
                if wanted + devices <= self.free_devices[pool] + self.coming[pool] + self.guests[pool]:
                    wanted += devices
            if wanted:
                yield pool, wanted

    def _notify(self, now: float, pool: int, wanted: int) -> None:
        """Evict the guests with the latest starts, until ``wanted`` devices will be free."""
        if wanted <= 0:
            return
        demand, home = self.demand, int(self.demand.pool_site[pool])
        guests = sorted(
            ((-start, run, job) for job, (where, start, _, run) in self.held.items() if where == pool),
        )
        for _, run, job in guests:
            if wanted <= 0:
                return
            if demand.site[job] == home or run in self.leaving:
                continue
            devices = int(demand.devices[job])
            self.leaving.add(run)
            self.guests[pool] -= devices
            self.coming[pool] += devices
            wanted -= devices
            heapq.heappush(self.events, (now + float(self.rules.notice_s[home]), _EVICTION, job, run))
