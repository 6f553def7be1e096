"""Policy of slopes over execution plans (Rubick, MLSys 2025, section 5): devices move from the flattest curve to the steepest.

The goodput of an outlook is that of the best plan at each size. Goodputs are relative to the requested size. A job never gets
less than the speed of its request: that is *guaranteed*. A new job takes free devices, then those beyond the guarantees of
others, where the loss per device is least. Remaining devices go where the gain per device is largest. New jobs are admitted in
order of arrival, and none overtakes another on a type that it waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.fleet import MOST_DEVICES
from paceline.scheduling.policies.sia import node_sizes
from paceline.scheduling.state import Decision, State

LEAST_GAIN = 0.01
"""Least gain of a resize, relative to the guaranteed speed (Rubick's simulator)."""
KEEPS = 0.97
"""Least share of a job's time for work, after restarts, at which it may be resized."""


@dataclass(slots=True)
class _Curve:
    """Speed of a job on a type: ascending ``sizes`` of rising goodput (``speed``, 1 at its request), the guaranteed first."""

    sizes: Ints
    speed: Array
    at: int = 0

    @property
    def devices(self) -> int:
        return int(self.sizes[self.at])

    def gain(self, free: int) -> tuple[float, int]:
        """Return the steepest growth within ``free`` more devices, as speed per device, and its index; 0 if there is none."""
        more = self.sizes[self.at + 1 :] - self.devices
        gains = self.speed[self.at + 1 :] - self.speed[self.at]
        slopes = np.where((more <= free) & (gains > LEAST_GAIN), gains / more, 0.0)
        if not slopes.size:
            return 0.0, self.at
        best = int(slopes.argmax())
        return float(slopes[best]), self.at + 1 + best

    def loss(self) -> tuple[float, int]:
        """Return the flattest reduction, as speed per device, and its index; inf if there is none."""
        if self.at == 0:
            return np.inf, 0
        slopes = (self.speed[self.at] - self.speed[: self.at]) / (self.devices - self.sizes[: self.at])
        flattest = int(slopes.argmin())
        return float(slopes[flattest]), flattest


class _TypePool:
    """Devices of a type and the jobs on them, with the slopes of growth and reduction. ``grid``: ``node_sizes`` of the type."""

    def __init__(self, free: int, grid: Ints) -> None:
        self.free, self.grid = free, grid
        self.curves: dict[int, _Curve] = {}
        self._jobs: list[int] = []
        self._up: list[float] = []
        self._down: list[float] = []

    def add(self, job: int, curve: _Curve) -> None:
        """Add a job with its devices."""
        self.free -= curve.devices
        self.curves[job] = curve
        self._jobs.append(job)
        self._up.append(curve.gain(MOST_DEVICES)[0])
        self._down.append(curve.loss()[0])

    @property
    def spare(self) -> int:
        """Number of free devices, and of devices beyond the guarantees of jobs."""
        return self.free + sum(curve.devices - int(curve.sizes[0]) for curve in self.curves.values())

    def _resize(self, place: int, to: int) -> None:
        curve = self.curves[self._jobs[place]]
        self.free += curve.devices - int(curve.sizes[to])
        curve.at = to
        self._up[place], self._down[place] = curve.gain(MOST_DEVICES)[0], curve.loss()[0]

    def shrink(self) -> None:
        """Take devices from the flattest curve."""
        place = int(np.argmin(self._down))
        self._resize(place, self.curves[self._jobs[place]].loss()[1])

    def _steepest(self, budget: int, but: int = -1) -> tuple[int, int]:
        """Return the job with the steepest growth within a budget, and its index; -1 if no job gains."""
        bounds, leads = np.array(self._up), dict[int, int]()
        if but >= 0:
            bounds[but] = 0.0
        while bounds.size:
            place = int(bounds.argmax())
            if bounds[place] <= 0:
                break
            if place in leads:
                return place, leads[place]
            bounds[place], leads[place] = self.curves[self._jobs[place]].gain(budget)
        return -1, 0

    def expand(self) -> None:
        """Give free devices to the steepest curve while a job gains."""
        while self.free > 0:
            place, to = self._steepest(self.free)
            if place < 0:
                return
            self._resize(place, to)

    def trade(self) -> None:
        """Move devices from the flattest to the steepest curve while the total rises."""
        while self._down and min(self._down) < np.inf:
            giver = int(np.argmin(self._down))
            curve = self.curves[self._jobs[giver]]
            lower = curve.loss()[1]
            place, to = self._steepest(self.free + curve.devices - int(curve.sizes[lower]), giver)
            taker = self.curves[self._jobs[place]]
            if place < 0 or taker.speed[to] - taker.speed[taker.at] <= curve.speed[curve.at] - curve.speed[lower] + LEAST_GAIN:
                return
            self._resize(giver, lower)
            self._resize(place, to)


def rubick(state: State) -> Decision:
    """Admit jobs in order of arrival, then move devices from the flattest curve to the steepest."""
    groups = state.fleet.groups
    pools = [_TypePool(int(count), node_sizes(group)) for count, group in zip(state.capacity, groups, strict=True)]
    fixed = _settled(state)
    for index in np.flatnonzero(state.devices).tolist():
        group, held = int(state.type_index[index]), int(state.devices[index])
        curve = None if fixed[index] else _curve(state, index, group, pools[group].grid, held)
        pools[group].add(index, curve or _Curve(np.array([held]), np.ones(1)))
    closed: set[int] = set()
    for index in np.flatnonzero(state.devices == 0).tolist():
        if len(closed) == len(pools):
            break
        _admit(state, index, pools, closed)
    devices, types = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    for group, pool in enumerate(pools):
        pool.expand()
        pool.trade()
        for index, curve in pool.curves.items():
            devices[index], types[index] = curve.devices, group
    order = np.argsort(-devices, kind="stable").tolist()
    return Decision(devices=devices, type_index=types, order=order, repack=True)


def _settled(state: State) -> Bools:
    """Return a mask of the jobs that keep their size, because another restart would cost too much of their time."""
    lost = (state.restarts + 1) * state.restart_s
    return np.asarray(state.age_s - lost < KEEPS * state.age_s) & (state.devices > 0)


def _curve(state: State, index: int, group: int, grid: Ints, held: int = 0) -> _Curve | None:
    """Return the curve of a job from its guaranteed size up, including its present size; None if it cannot run on this type.

    Args:
        grid: ``node_sizes`` of the type.
    """
    job, outlook = state.jobs[index], state.outlooks[index]
    nodes = state.fleet.groups[group]
    if not job.may_use(nodes.device):
        return None
    asked = job.devices
    most = min(max(outlook.max_devices(), asked), int(state.capacity[group])) if "devices" in job.adapts else asked
    if asked > state.capacity[group]:
        return None
    table = outlook.goodput(group, max(most, held, asked))
    if not table[asked] > 0:
        return None
    if "devices" not in job.adapts:
        return _Curve(np.array([asked]), np.ones(1))
    first, last = grid.searchsorted(job.min_devices), grid.searchsorted(most, "right")
    sizes = np.unique(np.concatenate([grid[first:last], [asked], [held] if held else []]))
    sizes = sizes.astype(np.int64)
    speed = table[sizes] / table[asked]
    rises = speed > np.maximum.accumulate(np.concatenate([[0.0], speed[:-1]]))
    keeps = ((speed >= 1 - 1e-9) & rises) | (sizes == held)
    sizes, speed = sizes[keeps], speed[keeps]
    return _Curve(sizes, speed, int(np.flatnonzero(sizes == held)[0]) if held else 0)


def _admit(state: State, index: int, pools: Sequence[_TypePool], closed: set[int]) -> None:
    """Give a new job its guaranteed size, from free devices or else from others, on the fastest type.

    A job that no type has room for now waits for all of them.
    """
    curves = {group: _curve(state, index, group, pools[group].grid) for group in range(len(pools)) if group not in closed}
    legal = {group: curve for group, curve in curves.items() if curve is not None}
    speeds = {group: float(state.outlooks[index].goodput(group, curve.devices)[-1]) for group, curve in legal.items()}
    for group in sorted(legal, key=lambda group: (pools[group].free < legal[group].devices, -speeds[group])):
        pool, needs = pools[group], legal[group].devices
        if pool.free < needs and pool.spare < needs:
            continue
        while pool.free < needs:
            pool.shrink()
        pool.add(index, legal[group])
        return
    closed.update(legal)
