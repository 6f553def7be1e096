"""Prices of devices of several types at which the jobs together want about the capacity.

At any prices, the payments of the jobs minus the price of all devices bound the least total cost from below (Lagrangian
relaxation; Fisher, 1981). The largest bound is that of the linear program.

- ``smooth`` takes Newton steps on the bound with softened choices (entropic smoothing; Nesterov, 2005). It is quick and close.
- ``cut`` finds the largest bound by cutting planes: every answer of the jobs bounds it from above (Kelley, 1960).
"""

from __future__ import annotations

import time

import numpy as np

from paceline.array_types import Array, Ints

MOST_PRICES = 200
"""Most price vectors that cutting planes try."""
MARKET_STEPS = 6
"""First steps, in which a price grows with the square root of demand over capacity, by at most ``MOST_CHANGE``."""
MOST_CHANGE = 3.0
SOFTNESS = (0.1, 0.03, 0.01, 0.003)
"""Softness of choices in the Newton steps, relative to the mean payment of a job. ``NEWTON_STEPS`` are taken with each."""
NEWTON_STEPS = 3


class DevicePrices:
    """Search for the prices of the largest bound.

    Args:
        job, devices, type_index, cost: job of each choice, ascending, its devices, their type, and its cost, below 0.
        capacity: devices of each type.

    Attributes:
        bound: largest bound so far.
        best: its prices.
    """

    def __init__(self, job: Ints, devices: Ints, type_index: Ints, cost: Array, capacity: Ints) -> None:
        self._devices, self._types, self._cost, self._capacity = devices, type_index, cost, capacity
        changes = np.diff(job, prepend=job[0]) != 0
        self._first = np.flatnonzero(np.diff(job, prepend=-1))
        self._rows = np.cumsum(changes)
        self._highest = np.zeros(len(capacity))
        np.maximum.at(self._highest, type_index, -cost / devices)  # no job wants devices at these prices
        self._cuts: list[Array] = []
        self.best = self._highest / 4
        self.bound = -np.inf

    def _answer(self, prices: Array) -> tuple[Array, Array, Ints]:
        """Return the payment of each choice, the least of each job, and the demand; and remember the bound."""
        paid = self._cost + prices[self._types] * self._devices
        least = np.minimum(np.minimum.reduceat(paid, self._first), 0.0)
        bound = float(least.sum() - prices @ self._capacity)
        if bound > self.bound:
            self.bound, self.best = bound, prices
        wanted = np.flatnonzero((paid == least[self._rows]) & (paid < 0))
        wanted = wanted[np.diff(self._rows[wanted], prepend=-1) > 0]  # one per job
        used = np.bincount(self._types[wanted], self._devices[wanted], len(self._capacity))
        self._cuts.append(np.concatenate([self._capacity - used, [1.0, self._cost[wanted].sum()]]))
        return paid, least, used

    def smooth(self) -> None:
        """Come close to the largest bound."""
        prices, capacity = self.best, np.maximum(self._capacity, 1)
        for _ in range(MARKET_STEPS):
            *_, used = self._answer(prices)
            prices = prices * np.clip(used / capacity, 1 / MOST_CHANGE**2, MOST_CHANGE**2) ** 0.5
        prices = self.best
        for softness in SOFTNESS:
            for _ in range(NEWTON_STEPS):
                paid, least, _ = self._answer(prices)
                prices = self._newton_step(prices, paid, least, softness * max(-float(least.mean()), 1e-300))
            prices = self.best if softness == SOFTNESS[0] else prices
        self._answer(prices)

    def _newton_step(self, prices: Array, paid: Array, least: Array, softness: float) -> Array:
        """Return the next prices, each at most doubled or halved."""
        types, jobs = len(prices), len(least)
        likely = np.exp((least[self._rows] - paid) / softness)
        total = np.add.reduceat(likely, self._first) + np.exp(least / softness)
        used = likely / total[self._rows] * self._devices
        table = np.bincount(self._rows * types + self._types, used, jobs * types).reshape(jobs, types)
        curvature = np.diag(np.bincount(self._types, used * self._devices, types)) - table.T @ table
        excess = table.sum(axis=0) - self._capacity
        free = (prices > 0) & (curvature.diagonal() > 0)
        step = np.zeros(types)
        if free.any():
            step[free] = softness * np.linalg.lstsq(curvature[np.ix_(free, free)], excess[free], rcond=None)[0]
        return np.clip(prices + step, prices / 2, 2 * prices)

    def cut(self, gap: float, deadline: float) -> bool:
        """Reach the largest bound but for a relative gap. Return False if time is over.

        Args:
            deadline: on the monotonic clock.
        """
        from scipy.optimize import linprog

        upper = np.inf
        ranges = [*((0.0, price) for price in self._highest), (None, None)]
        if not self._cuts:
            self._answer(self.best)
        for _ in range(MOST_PRICES):
            if time.monotonic() >= deadline:
                return False
            table = np.array(self._cuts)
            goal = [*[0.0] * len(self._capacity), -1.0]
            master = linprog(goal, A_ub=table[:, :-1], b_ub=table[:, -1], bounds=ranges, method="highs")
            upper = float(master.x[-1])
            if upper - self.bound <= gap * abs(self.bound):
                break
            self._answer(master.x[:-1])
        return True
