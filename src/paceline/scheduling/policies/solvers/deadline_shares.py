"""Minimum satisfactory shares (ElasticFlow, ASPLOS 2023, section 4.1): the fewest devices over time that meet a deadline."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.sizes import grown

_ENOUGH = 1 - 1e-9


@dataclass(slots=True)
class FreeDevices:
    """Unplanned devices from each of ``moments`` to the next. The last period has no end."""

    moments: list[float]
    devices: list[int]

    def take(self, plan: SharePlan) -> None:
        """Remove the devices of a plan."""
        for start, end, size in plan.stretches:
            first, last = self._period_at(start), self._period_at(end)
            for index in range(first, last):
                self.devices[index] -= size

    def _period_at(self, moment: float) -> int:
        """Return the index of the period that begins at ``moment``, splitting one if needed."""
        index = bisect_left(self.moments, moment)
        if index == len(self.moments) or self.moments[index] != moment:
            self.moments.insert(index, moment)
            self.devices.insert(index, self.devices[index - 1])
        return index


@dataclass(slots=True)
class SharePlan:
    """Periods of a plan as (start, end, devices). ``in_time``: True if all work is done by the deadline."""

    stretches: list[tuple[float, float, int]] = field(default_factory=list)
    in_time: bool = True

    def at(self, moment: float) -> int:
        """Return the devices at a moment."""
        return next((size for start, end, size in self.stretches if start <= moment < end), 0)

    @property
    def device_s(self) -> float:
        """Total devices times seconds."""
        return sum((end - start) * size for start, end, size in self.stretches)


class SpeedTable:
    """Progress a second by number of devices, without sizes that are no faster than a smaller one."""

    def __init__(self, table: Array) -> None:
        self.table = table
        self.sizes = grown(table)
        self.fits = np.zeros(len(table), np.int64)  # the largest of the sizes within a number of devices
        self.fits[self.sizes] = self.sizes
        self.fits = np.maximum.accumulate(self.fits)

    def within(self, devices: Ints, quota: int) -> Ints:
        """Return the size to use when this many devices are free and at most ``quota`` are wanted."""
        return np.asarray(self.fits[np.clip(devices, 0, min(quota, len(self.fits) - 1))])


def least_share(free: FreeDevices, speeds: SpeedTable, work: float, deadline_s: float, held: int = 0) -> SharePlan:
    """Return the smallest quota of devices that does the work by the deadline, for no longer than needed.

    The quota shrinks to the next smaller one as soon as that suffices, unless the job holds it already: then it stays. The
    published simulator instead grows to the larger quota as late as possible, so a job that is delayed then is late.

    Args:
        work: in units of ``speeds``.
    """
    stretch = _Stretches(free, deadline_s)
    place = stretch.least(speeds, work)
    sizes = speeds.sizes.tolist()
    if place == len(sizes):
        return SharePlan(_forward(free, speeds, work, sizes[-1] if sizes else 0), in_time=False)
    if held == sizes[place]:
        return SharePlan(_forward(free, speeds, work, held))
    starts, ends, seconds = stretch.starts, stretch.ends, stretch.seconds
    large = speeds.within(stretch.devices, sizes[place])
    small = speeds.within(stretch.devices, sizes[place - 1]) if place else np.zeros_like(large)
    fast, slow = speeds.table[large] * seconds, speeds.table[small] * seconds
    # Work by the deadline if the quota shrinks after each stretch. The first that suffices holds the change.
    total = np.cumsum(fast) + slow.sum() - np.cumsum(slow)
    index = int(np.argmax(total >= work * _ENOUGH))
    rest = work - float(fast[:index].sum() + slow[index:].sum())
    gain = float(speeds.table[large[index]] - speeds.table[small[index]])
    change = starts[index] + min(max(rest / gain, 0.0), seconds[index]) if gain > 0 else ends[index]
    before, behind = slice(None, index + 1), slice(index, None)
    return SharePlan(
        _joined(
            np.concatenate([starts[before], [change], starts[index + 1 :]]),
            np.concatenate([ends[:index], [change], ends[behind]]),
            np.concatenate([large[before], small[behind]]),
        )
    )


def steady_share(
    free: FreeDevices, speeds: SpeedTable, work: float, deadline_s: float, margin_s: float, held: int
) -> SharePlan:
    """Return one quota to the end: the present one if it meets the deadline, else the smallest that does.

    It takes more device-time than the least share, and restarts seldom.

    Args:
        margin_s: time reserved for the restart that a new quota costs.
    """
    stretch = _Stretches(free, deadline_s)
    if held and stretch.work(speeds, held) >= work * _ENOUGH:
        return SharePlan(_forward(free, speeds, work, held))
    place = _Stretches(free, deadline_s - margin_s).least(speeds, work)
    sizes = speeds.sizes.tolist()
    if place == len(sizes):
        return SharePlan(in_time=False)
    return SharePlan(_forward(free, speeds, work, sizes[place]))


class _Stretches:
    """Periods of free devices up to a deadline, as arrays of shape (periods,)."""

    def __init__(self, free: FreeDevices, deadline_s: float) -> None:
        count = bisect_left(free.moments, deadline_s)
        self.starts, self.devices = np.array(free.moments[:count], float), np.array(free.devices[:count], np.int64)
        self.ends = np.append(self.starts[1:], deadline_s)[:count]
        self.seconds = self.ends - self.starts

    def work(self, speeds: SpeedTable, quota: int) -> float:
        """Return the work that can be done with at most ``quota`` devices."""
        return float((speeds.table[speeds.within(self.devices, quota)] * self.seconds).sum())

    def least(self, speeds: SpeedTable, work: float) -> int:
        """Return the index in ``speeds.sizes`` of the smallest quota that does the work; past the end if there is none."""
        sizes = speeds.sizes.tolist()
        low, high = 0, len(sizes)
        while low < high:  # more devices do more work
            middle = (low + high) // 2
            low, high = (low, middle) if self.work(speeds, sizes[middle]) >= work * _ENOUGH else (middle + 1, high)
        return low


def _forward(free: FreeDevices, speeds: SpeedTable, work: float, quota: int) -> list[tuple[float, float, int]]:
    """Return the periods from now on with at most ``quota`` devices, until the work is done."""
    starts = np.array(free.moments)
    used = speeds.within(np.array(free.devices), quota)
    rates = speeds.table[used]
    done = np.cumsum(rates[:-1] * np.diff(starts))
    last = int(np.searchsorted(done, work))
    left = work - (float(done[last - 1]) if last else 0.0)
    ends = np.append(starts[1 : last + 1], starts[last] + (left / rates[last] if rates[last] > 0 else 0.0))
    return _joined(starts[: last + 1], ends, used[: last + 1])


def _joined(starts: Array, ends: Array, sizes: Ints) -> list[tuple[float, float, int]]:
    """Return the periods without empty ones, with adjacent ones of one size merged; shape (periods,) each."""
    keep = ends - starts > 1e-9
    starts, ends, sizes = starts[keep], ends[keep], sizes[keep]
    first = np.flatnonzero(np.diff(sizes, prepend=-1))
    last = np.append(first[1:], len(sizes)) - 1
    rows = zip(starts[first].tolist(), ends[last[: len(first)]].tolist(), sizes[first].tolist(), strict=True)
    return [(start, end, size) for start, end, size in rows if size]
