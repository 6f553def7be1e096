"""Minimum satisfactory shares (ElasticFlow, ASPLOS 2023, section 4.1): the fewest devices over time that meet a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.sizes import grown

_ENOUGH = 1 - 1e-9
_SHORTEST_S = 1e-9
"""Periods that are not longer are left out."""
_MANY = 1 << 62


class FreeDevices:
    """Unplanned devices from each of some moments to the next. The last period has no end."""

    def __init__(self, moments: Sequence[float] | Array, devices: Sequence[int] | Ints) -> None:
        self._count = len(moments)
        self._moments, self._devices = np.array(moments, float), np.array(devices, np.int64)

    @property
    def moments(self) -> Array:
        """Starts of the periods, ascending; shape (periods,)."""
        return self._moments[: self._count]

    @property
    def devices(self) -> Ints:
        """Unplanned devices in each period; shape (periods,)."""
        return self._devices[: self._count]

    def copy(self) -> FreeDevices:
        """Return equal free devices, which change independently."""
        return FreeDevices(self.moments, self.devices)

    def take(self, plan: SharePlan) -> None:
        """Remove the devices of a plan."""
        for start, end, size in plan.stretches:
            first, last = self._period_at(start), self._period_at(end)
            self._devices[first:last] -= size

    def _period_at(self, moment: float) -> int:
        """Return the index of the period that begins at ``moment``, splitting one if needed."""
        index, count = int(self.moments.searchsorted(moment)), self._count
        if index < count and self._moments[index] == moment:
            return index
        if count == len(self._moments):  # room for as many again
            self._moments, self._devices = np.resize(self._moments, 2 * count), np.resize(self._devices, 2 * count)
        for values in (self._moments, self._devices):
            values[index + 1 : count + 1] = values[index:count].copy()
        self._moments[index], self._devices[index] = moment, self._devices[index - 1]
        self._count = count + 1
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
    """Progress a second by number of devices, without sizes that are no faster than a smaller one.

    Attributes:
        sizes: these sizes. ``speeds``: progress a second on each.
        fits: largest of the sizes within each number of devices.
    """

    def __init__(self, table: Array, sizes: Ints | None = None, fits: Ints | None = None) -> None:
        self.table = table
        self.sizes = grown(table) if sizes is None else sizes
        self.speeds = table[self.sizes]
        if fits is None:
            fits = np.zeros(len(table), np.int64)
            fits[self.sizes] = self.sizes
            fits = np.maximum.accumulate(fits)
        self.fits = fits

    @classmethod
    def of_all(cls, tables: Sequence[Array]) -> list[SpeedTable]:
        """Return the tables of many jobs. Tables of equal length are computed together."""
        lengths, found = np.array([len(table) for table in tables]), dict[int, SpeedTable]()
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length).tolist()
            block = np.array([tables[place] for place in places])
            faster = block > np.concatenate([np.zeros((len(block), 1)), np.maximum.accumulate(block, axis=1)[:, :-1]], axis=1)
            fits = np.maximum.accumulate(np.where(faster, np.arange(length), 0), axis=1)
            sizes = np.split(faster.nonzero()[1], faster.sum(axis=1).cumsum()[:-1])
            found |= {place: cls(*of_job) for place, *of_job in zip(places, block, sizes, fits, strict=True)}
        return [found[place] for place in range(len(tables))]

    @cached_property
    def _rates(self) -> Array:
        return self.table[self.fits]

    def place(self, work: float, seconds: float) -> int:
        """Return the index in ``sizes`` of the smallest that does the work in time; past the end if there is none."""
        return int((self.speeds * seconds).searchsorted(work * _ENOUGH))

    def within(self, devices: Ints, quota: int) -> Ints:
        """Return the size to use when this many devices are free and at most ``quota`` are wanted."""
        return np.asarray(self.fits[np.minimum(devices, min(quota, len(self.fits) - 1))])

    def rates(self, devices: Ints, quota: int) -> Array:
        """Return the progress a second on that size."""
        return np.asarray(self._rates[np.minimum(devices, min(quota, len(self.fits) - 1))])


def least_share(free: FreeDevices, speeds: SpeedTable, work: float, deadline_s: float, held: int = 0) -> SharePlan:
    """Return the smallest quota of devices that does the work by the deadline, for no longer than needed.

    The quota shrinks to the next smaller one as soon as that suffices, unless the job holds it already: then it stays. The
    published simulator instead grows to the larger quota as late as possible, so a job that is delayed then is late.

    Args:
        work: in units of ``speeds``.
    """
    stretch = _Stretches(free, deadline_s)
    place = speeds.place(work, stretch.whole_s)
    if place < len(speeds.sizes) and speeds.sizes[place] <= stretch.fewest:
        return SharePlan(_constant(stretch, speeds, work, place, held))
    place = stretch.least(speeds, work)
    sizes = speeds.sizes.tolist()
    if place == len(sizes):
        return SharePlan(_forward(free, speeds, work, sizes[-1] if sizes else 0), in_time=False)
    if held == sizes[place]:
        return SharePlan(_forward(free, speeds, work, held, stretch.count or None))
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
        return SharePlan(_forward(free, speeds, work, held, stretch.count or None))
    place = speeds.place(work, stretch.whole_s - margin_s)
    if place == len(speeds.sizes) or speeds.sizes[place] > stretch.fewest:
        place = _Stretches(free, deadline_s - margin_s).least(speeds, work)
    sizes = speeds.sizes.tolist()
    if place == len(sizes):
        return SharePlan(in_time=False)
    return SharePlan(_forward(free, speeds, work, sizes[place], stretch.count or None))


class _Stretches:
    """Periods of free devices up to a deadline, as arrays of shape (periods,).

    Attributes:
        whole_s: seconds to the deadline. ``fewest``: fewest devices that are free in all of them; 0: no time is left.
    """

    def __init__(self, free: FreeDevices, deadline_s: float) -> None:
        self.count = count = int(free.moments.searchsorted(deadline_s))
        self.starts, self.devices = free.moments[:count], free.devices[:count]
        self._deadline_s = deadline_s
        self.whole_s = deadline_s - float(free.moments[0])
        self.fewest = int(self.devices.min(initial=_MANY)) if count else 0

    @cached_property
    def ends(self) -> Array:
        """Ends of the periods."""
        ends = np.empty(self.count)
        ends[:-1], ends[-1:] = self.starts[1:], self._deadline_s
        return ends

    @cached_property
    def seconds(self) -> Array:
        """Lengths of the periods."""
        return np.asarray(self.ends - self.starts)

    def work(self, speeds: SpeedTable, quota: int) -> float:
        """Return the work that can be done with at most ``quota`` devices."""
        if quota <= self.fewest:
            return float(speeds.table[speeds.fits[min(quota, len(speeds.fits) - 1)]]) * self.whole_s
        return float(speeds.rates(self.devices, quota) @ self.seconds)

    def least(self, speeds: SpeedTable, work: float) -> int:
        """Return the index in ``speeds.sizes`` of the smallest quota that does the work; past the end if there is none."""
        sizes = speeds.sizes.tolist()
        low, high = 0, len(sizes)
        while low < high:  # more devices do more work
            middle = (low + high) // 2
            low, high = (low, middle) if self.work(speeds, sizes[middle]) >= work * _ENOUGH else (middle + 1, high)
        return low


def _constant(stretch: _Stretches, speeds: SpeedTable, work: float, place: int, held: int) -> list[tuple[float, float, int]]:
    """Return the periods of a quota that is free up to the deadline, and of the next smaller one once that suffices."""
    start, end = float(stretch.starts[0]), float(stretch.starts[0]) + stretch.whole_s
    large, fast = int(speeds.sizes[place]), float(speeds.speeds[place])
    if held == large:
        return [(start, start + work / fast, large)]
    small, slow = (int(speeds.sizes[place - 1]), float(speeds.speeds[place - 1])) if place else (0, 0.0)
    change = start + min(max((work - slow * stretch.whole_s) / (fast - slow), 0.0), stretch.whole_s)
    periods = (start, change, large), (change, end, small)
    return [period for period in periods if period[2] and period[1] - period[0] > _SHORTEST_S]


def _forward(
    free: FreeDevices, speeds: SpeedTable, work: float, quota: int, count: int | None = None
) -> list[tuple[float, float, int]]:
    """Return the periods from now on with at most ``quota`` devices, until the work is done.

    Args:
        count: number of periods in which the work is done; None: unknown. The last one may be longer.
    """
    if 0 < quota <= int(free.devices[:count].min()):
        size = int(speeds.fits[min(quota, len(speeds.fits) - 1)])
        start, rate = float(free.moments[0]), float(speeds.table[size])
        if rate > 0 and work / rate > _SHORTEST_S:
            return [(start, start + work / rate, size)]
    starts = free.moments[:count]
    used = speeds.within(free.devices[:count], quota)
    rates = speeds.rates(free.devices[:count], quota)
    done = (rates[:-1] * (starts[1:] - starts[:-1])).cumsum()
    last = int(done.searchsorted(work))
    left = work - (float(done[last - 1]) if last else 0.0)
    ends = np.append(starts[1 : last + 1], starts[last] + (left / rates[last] if rates[last] > 0 else 0.0))
    return _joined(starts[: last + 1], ends, used[: last + 1])


def _joined(starts: Array, ends: Array, sizes: Ints) -> list[tuple[float, float, int]]:
    """Return the periods without empty ones, with adjacent ones of one size merged; shape (periods,) each."""
    keep = (ends - starts > _SHORTEST_S).nonzero()[0]
    if not keep.size:
        return []
    changes = np.ones(len(keep) + 1, bool)
    changes[1:-1] = sizes[keep[1:]] != sizes[keep[:-1]]
    first, last = keep[changes[:-1]], keep[changes[1:]]
    rows = zip(starts[first].tolist(), ends[last].tolist(), sizes[first].tolist(), strict=True)
    return [(start, end, size) for start, end, size in rows if size]
