"""Free devices over time, from which reservations are taken."""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array, Ints

ROUNDING_S = 1e-6
"""Tolerance of sums of times."""


class Availability:
    """Step function of the free devices from now on.

    Args:
        now_s: time of the first step.
        free: devices that are free now.
        ends_s: times at which devices come free; inf: never. ``devices``: their number.
    """

    def __init__(self, now_s: float, free: int, ends_s: Array, devices: Ints) -> None:
        moments = np.maximum(ends_s, now_s)
        known = np.isfinite(moments)
        steps, places = np.unique(moments[known], return_inverse=True)
        gained = np.bincount(places, devices[known], len(steps)).astype(np.int64)
        later = steps > now_s
        self._count = 1 + int(later.sum())
        room = self._count + 64
        self._times, self._free = np.full(room, math.inf), np.zeros(room, np.int64)
        self._times[0], self._times[1 : self._count] = now_s, steps[later]
        self._free[: self._count] = free + np.cumsum(np.concatenate([[gained[~later].sum()], gained[later]]))

    def copy(self) -> Availability:
        """Return a copy."""
        other = Availability.__new__(Availability)
        other._count, other._times, other._free = self._count, self._times.copy(), self._free.copy()
        return other

    @property
    def times_s(self) -> Array:
        """Time of each step."""
        return self._times[: self._count]

    @property
    def free(self) -> Ints:
        """Free devices from each step to the next, the last one for good."""
        return self._free[: self._count]

    def earliest(self, devices: int, seconds: float, after_s: float = -math.inf) -> float:
        """Return the first time from which devices are free for some seconds; inf if there is none.

        Args:
            after_s: earliest time that counts.
        """
        count, times = self._count, self._times
        first = max(int(times[:count].searchsorted(after_s, "right")) - 1, 0) if after_s > times[0] else 0
        short = (self._free[first:count] < devices).nonzero()[0]
        if not short.size:
            return max(float(times[first]), after_s)
        short += first
        if first < short[0]:  # devices are free at once
            start_s = max(float(times[first]), after_s)
            if times[short[0]] >= start_s + seconds - ROUNDING_S:
                return start_s
        begins = short[:-1][short[1:] - short[:-1] > 1] + 1 if short.size > 1 else short[:0]
        if begins.size:
            stops = times[short[short.searchsorted(begins)]]
            starts = np.maximum(times[begins], after_s)
            long = (stops >= starts + seconds - ROUNDING_S).nonzero()[0]
            if long.size:
                return float(starts[long[0]])
        last = int(short[-1]) + 1
        return max(float(times[last]), after_s) if last < count else math.inf

    def least(self, start_s: float, seconds: float) -> int:
        """Return the least number of free devices in a period."""
        first = max(int(self.times_s.searchsorted(start_s, "right")) - 1, 0)
        stop = int(self.times_s.searchsorted(start_s + seconds - ROUNDING_S, "left"))
        return int(self.free[first : max(stop, first + 1)].min())

    def reserve(self, devices: int, start_s: float, seconds: float) -> None:
        """Take devices for a period."""
        first = self._step(start_s)
        stop = self._step(start_s + seconds) if math.isfinite(seconds) else self._count
        self._free[first:stop] -= devices

    def release(self, devices: int, start_s: float) -> None:
        """Add devices from a time on."""
        self._free[self._step(start_s) : self._count] += devices

    def _step(self, moment_s: float) -> int:
        """Return the step that begins at a time, which is made if there is none."""
        count = self._count
        place = int(self._times[:count].searchsorted(moment_s - ROUNDING_S, "left"))
        if place < count and abs(self._times[place] - moment_s) <= ROUNDING_S:
            return place
        if place == 0:
            return 0
        if count == len(self._times):
            self._times = np.concatenate([self._times, np.full(count, math.inf)])
            self._free = np.concatenate([self._free, np.zeros(count, np.int64)])
        self._times[place + 1 : count + 1] = self._times[place:count].copy()
        self._free[place + 1 : count + 1] = self._free[place:count].copy()
        self._times[place], self._free[place] = moment_s, self._free[place - 1]
        self._count += 1
        return place
