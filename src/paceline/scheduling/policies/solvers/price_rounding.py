"""Allocation of whole devices from prices of several types.

At its price, each device type is wanted by about as many jobs as it has devices, and the sum of the payments bounds the least
total (``device_prices``). An allocation exceeds this bound by the payments of its jobs beyond their least ones, plus the price
of idle devices. So jobs start with the choice of the least payment. Then those that lose least per device leave types with too
few devices, and those that lose least take the idle devices. The rounding is a heuristic, and the bound says how good it is.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.useful_choices import Choices

MOST_FILLS = 30
"""Most passes over all jobs that distribute idle devices. The total falls in each."""


def rounded(choices: Choices, prices: Array, capacity: Ints) -> Ints:
    """Return at most one choice per job, within the devices of each type.

    Args:
        choices: one job after another, each with a cost below 0.
        prices: price of a device of each type. ``capacity``: devices of each type, at least 0.
    """
    if not len(choices.job):
        return np.zeros(0, np.int64)
    changes = np.flatnonzero(np.diff(choices.job, prepend=-1))
    search = _Rounding(choices, changes, prices, capacity)
    while (search.idle < 0).any():
        search.relieve(int(search.idle.argmin()))
    for _ in range(MOST_FILLS):
        if not search.fill():
            break
    return search.taken()


class _Rounding:
    """Choices with one more per job, which takes no devices, and the present choice of each job.

    Attributes:
        idle: idle devices of each type; below 0: so many devices are missing.
    """

    def __init__(self, choices: Choices, first: Ints, prices: Array, capacity: Ints) -> None:
        self._rows = np.insert(np.arange(len(choices.job)), first, -1)
        jobs = np.diff(first, append=len(choices.job)) + 1
        self._job = np.repeat(np.arange(len(first)), jobs)
        self._first = jobs.cumsum() - jobs
        self._devices, self._types = np.insert(choices.devices, first, 0), np.insert(choices.type_index, first, 0)
        self._cost = np.insert(choices.cost, first, 0.0)
        paid = self._cost + prices[self._types] * self._devices
        least = np.minimum.reduceat(paid, self._first)[self._job]
        self._beyond = paid - least
        best = np.flatnonzero(self._beyond <= 0)
        best = best[np.lexsort((self._devices[best], self._job[best]))]
        self._now = best[np.diff(self._job[best], prepend=-1) > 0]
        used = np.bincount(self._types[self._now], self._devices[self._now], len(capacity))
        self.idle: Ints = capacity - used.astype(np.int64)

    def taken(self) -> Ints:
        """Return the present choices that take devices."""
        rows = self._rows[self._now]
        return rows[rows >= 0]

    def relieve(self, crowded: int) -> None:
        """Let jobs leave a type, or shrink on it, until its devices suffice: first those that lose least per device."""
        missing = -int(self.idle[crowded])
        now = self._now[self._job]
        there = self._types == crowded
        freed = np.where(self._types[now] == crowded, self._devices[now] - np.where(there, self._devices, 0), 0)
        moves = np.flatnonzero((freed > 0) & (there | (self._devices <= np.maximum(self.idle, 0)[self._types])))
        lost = (self._beyond[moves] - self._beyond[now[moves]]) / np.minimum(freed[moves], missing)
        self._move(moves[np.lexsort((freed[moves], lost))], crowded)

    def fill(self) -> bool:
        """Let jobs take idle devices that lower the total: first those that lose least. Return False if there was none."""
        now = self._now[self._job]
        room = self.idle[self._types] + np.where(self._types[now] == self._types, self._devices[now], 0)
        moves = np.flatnonzero((self._cost < self._cost[now]) & (self._devices <= room))
        lost = self._beyond[moves] - self._beyond[now[moves]]
        return self._move(moves[np.argsort(lost, kind="stable")])

    def _move(self, rows: Ints, crowded: int = -1) -> bool:
        """Move jobs in the order of their new choices, each once, where there is room. Return whether any job moved.

        Args:
            crowded: type whose room is not asked for; no job moves once its devices suffice. -1: none.
        """
        idle, moved = self.idle.tolist(), set[int]()
        columns = (part[rows].tolist() for part in (self._job, self._types, self._devices))
        for row, job, kind, devices in zip(rows.tolist(), *columns, strict=True):
            if job in moved:
                continue
            now = int(self._now[job])
            kind_now, devices_now = int(self._types[now]), int(self._devices[now])
            if devices and kind != crowded and devices > idle[kind] + (devices_now if kind == kind_now else 0):
                continue
            moved.add(job)
            self._now[job] = row
            idle[kind_now] += devices_now
            idle[kind] -= devices
            if crowded >= 0 and idle[crowded] >= 0:
                break
        self.idle = np.array(idle, np.int64)
        return bool(moved)
