"""Multiple-choice knapsack: one size of each job with the least total cost within the devices of one type.

A price of a device splits the problem into one choice per job. At the best price, the payments of the jobs bound the least
total from below (Lagrangian relaxation; Fisher, 1981). A choice whose payment exceeds the least payment of its job by more than
the distance between a known total and this bound is in no solution of the least total (Sinha and Zoltners, 1979). Dynamic
programming solves the rest, usually a few jobs. So the answer is as exact as that of dynamic programming (``least_cost``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline.array_types import Array, Bools, Ints

ROUNDING = 1e-12
"""Rounding error of a total, relative to it."""
DIRECT = 128
"""Most devices for which dynamic programming alone decides, so that equal totals are resolved as in the published runs."""
MOST_PRICES = 100
"""Most prices that are tried. The best one is usually found after about ten."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all jobs, one job after another. Sizes of a job ascend, and its first size is 0.

    Attributes:
        devices: devices of each size. ``cost``: its cost.
        first: index of the first size of each job.
    """

    devices: Ints
    cost: Array
    first: Ints

    @classmethod
    def of(cls, options: Sequence[Ints], costs: Sequence[Array]) -> Sizes:
        """Join the sizes of each job."""
        counts = np.array([len(sizes) for sizes in options])
        return cls(np.concatenate(options), np.concatenate(costs), np.cumsum(counts) - counts)

    @property
    def job(self) -> Ints:
        """Job of each size."""
        marks = np.zeros(len(self.devices), np.int64)
        marks[self.first[1:]] = 1
        return marks.cumsum()


def least_total(sizes: Sizes, capacity: int) -> Ints:
    """Return the devices of each job at the least total cost within the capacity.

    Among equal totals, jobs that come first get devices first.
    """
    if capacity <= DIRECT:
        parts = [slice(first, end) for first, end in pairwise([*sizes.first.tolist(), len(sizes.devices)])]
        return least_cost([sizes.devices[part] for part in parts], [sizes.cost[part] for part in parts], capacity)
    search = _Prices(sizes, capacity)
    chosen = search.cheapest(0.0)
    if int(sizes.devices[chosen].sum()) <= capacity:
        return sizes.devices[chosen]
    chosen, beyond, gap = search.best()
    error = ROUNDING * float(np.abs(sizes.cost[chosen]).sum())
    if gap <= error:
        return sizes.devices[chosen]
    return _rest(sizes, capacity, np.asarray(beyond <= gap + error))


class _Prices:
    """Search for the price of a device at which the jobs want about all devices."""

    def __init__(self, sizes: Sizes, capacity: int) -> None:
        self.sizes, self.capacity, self.job = sizes, capacity, sizes.job

    def cheapest(self, price: float) -> Ints:
        """Return the cheapest size of each job at a price, the smallest of equal ones."""
        paid = self.sizes.cost + price * self.sizes.devices
        return self._first(paid == self._least(paid))

    def _least(self, paid: Array) -> Array:
        """Return the least payment of the job of each size."""
        return np.asarray(np.minimum.reduceat(paid, self.sizes.first)[self.job])

    def _first(self, mask: Bools) -> Ints:
        """Return the first marked size of each job."""
        marked = np.flatnonzero(mask)
        jobs = self.job[marked]
        keep = np.empty(len(jobs), bool)
        keep[:1] = True
        np.not_equal(jobs[1:], jobs[:-1], out=keep[1:])
        return marked[keep]

    def best(self) -> tuple[Ints, Array, float]:
        """Return a good choice of sizes, the payment of each size beyond the least of its job, and the gap to the bound."""
        sizes, capacity = self.sizes, self.capacity
        many = self.cheapest(0.0)
        few = sizes.first  # what jobs choose at a high price
        price = 0.0
        for _ in range(MOST_PRICES):
            (most, low), (least, high) = ((sizes.devices[rows].sum(), sizes.cost[rows].sum()) for rows in (many, few))
            price = float((high - low) / (most - least))
            rows = self.cheapest(price)
            wanted, cost = sizes.devices[rows].sum(), sizes.cost[rows].sum()
            if cost + price * wanted >= low + price * most - ROUNDING * abs(low):
                break  # both lie on the line of this price
            if wanted > capacity:
                many = rows
            else:
                few = rows
        paid = sizes.cost + price * sizes.devices
        least = np.minimum.reduceat(paid, sizes.first)
        beyond = paid - least[self.job]
        chosen = self._filled(few, beyond)
        bound = float(least.sum()) - price * capacity
        return chosen, beyond, float(sizes.cost[chosen].sum()) - bound

    def _filled(self, chosen: Ints, beyond: Array) -> Ints:
        """Give the remaining devices to the sizes that lose least by the price, in order of jobs where they are equal."""
        sizes, chosen = self.sizes, chosen.copy()
        left = self.capacity - int(sizes.devices[chosen].sum())
        larger = sizes.devices - sizes.devices[chosen][self.job]
        useful = np.flatnonzero((larger > 0) & (larger <= left) & (sizes.cost < sizes.cost[chosen][self.job]))
        grown: set[int] = set()
        for row in useful[np.argsort(beyond[useful], kind="stable")].tolist():
            if left <= 0:
                break
            job = int(self.job[row])
            if larger[row] <= left and job not in grown:
                grown.add(job)
                chosen[job] = row
                left -= int(larger[row])
        return chosen


def _rest(sizes: Sizes, capacity: int, kept: Bools) -> Ints:
    """Return the devices of each job with the kept sizes only, by dynamic programming over the jobs that keep several.

    Equal jobs with two sizes are counted, and the first of them get the larger size.
    """
    rows = np.flatnonzero(kept)
    job, devices, cost = sizes.job[rows], sizes.devices[rows], sizes.cost[rows]
    first = np.flatnonzero(np.diff(job, prepend=-1))
    ends = np.append(first[1:], len(rows))
    answer = devices[first].copy()
    left = capacity - int(answer.sum())
    pairs = np.flatnonzero(ends - first == 2)
    equal: dict[tuple[int, float], list[int]] = {}
    added = devices[first[pairs] + 1] - devices[first[pairs]], cost[first[pairs] + 1] - cost[first[pairs]]
    for index, size, more in zip(pairs.tolist(), added[0].tolist(), added[1].tolist(), strict=True):
        equal.setdefault((size, more), []).append(index)
    options, costs = [], []
    for (size, more), group in equal.items():
        bundles = _bundles(min(len(group), left // size))
        options += [np.array([0, size * count]) for count in bundles]
        costs += [np.array([0.0, more * count]) for count in bundles]
    several = np.flatnonzero(ends - first > 2).tolist()
    for index in several:
        own = slice(first[index], ends[index])
        options.append(devices[own] - devices[first[index]])
        costs.append(cost[own])
    found = least_cost(options, costs, left)
    answer[several] += found[len(found) - len(several) :]
    start = 0
    for (size, _), group in equal.items():
        end = start + len(_bundles(min(len(group), left // size)))
        answer[group[: int(found[start:end].sum()) // size]] += size
        start = end
    return answer


def _bundles(count: int) -> list[int]:
    """Split a number into few parts whose partial sums are all numbers up to it: powers of two, and the rest."""
    parts = [1 << power for power in range((count + 1).bit_length() - 1)]
    rest = count - sum(parts)
    return [*parts, rest] if rest else parts


def least_cost(options: Sequence[Ints], costs: Sequence[Array], capacity: int) -> Ints:
    """Return what ``least_total`` returns, by dynamic programming over all jobs and numbers of devices.

    Args:
        options: sizes of each job, including 0. ``costs``: cost of each size.
    """
    best = np.zeros(capacity + 1)
    chosen = np.zeros((len(options), capacity + 1), np.int64)
    for job, (sizes, cost) in enumerate(zip(options, costs, strict=True)):
        fresh = best + cost[0]
        pick = np.zeros(capacity + 1, np.int64)
        for size, price in zip(sizes[1:].tolist(), cost[1:].tolist(), strict=True):
            if size > capacity:
                break
            other = best[: capacity + 1 - size] + price
            better = other < fresh[size:]
            fresh[size:] = np.where(better, other, fresh[size:])
            pick[size:][better] = size
        best, chosen[job] = fresh, pick
    devices, left = np.zeros(len(options), np.int64), int(best.argmin())
    for job in range(len(options) - 1, -1, -1):
        devices[job] = chosen[job, left]
        left -= int(devices[job])
    return devices
