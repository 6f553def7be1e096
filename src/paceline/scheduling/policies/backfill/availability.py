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
        times, free = self.times_s, self.free
        first = max(int(times.searchsorted(after_s, "right")) - 1, 0)
        short = np.flatnonzero(free[first:] < devices) + first
        if not short.size:
            return max(float(times[first]), after_s)
        begins, ends = np.concatenate([[first], short + 1]), np.concatenate([short, [len(times)]])
        whole = begins < ends
        begins, ends = begins[whole], ends[whole]
        if not begins.size:
            return math.inf
        starts = np.maximum(times[begins], after_s)
        stops = np.full(len(ends), math.inf)
        bounded = ends < len(times)
        stops[bounded] = times[ends[bounded]]
        long = np.flatnonzero(stops >= starts + seconds - ROUNDING_S)
        return float(starts[long[0]]) if long.size else math.inf

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
