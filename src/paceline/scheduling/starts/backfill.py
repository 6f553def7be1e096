"""Rule by which Slurm starts jobs: in order of priority, and later jobs where they delay no reservation.

Source: Slurm's documentation, ``sched_config`` (``sched/backfill``): a lower-priority job starts if that delays the expected
start of no higher-priority job. Expected starts come from time limits. A job takes only nodes that are free until its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.placement import Placement

UNLIMITED_S = 365 * 86400.0
"""Limit of a job without one, as Slurm plans it: one year."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Devices that a job needs: ``per_node`` on each of ``nodes`` nodes, or ``devices`` on any nodes if ``nodes`` is 0.

    ``pool``: numbers of the nodes that it may use.
    """

    pool: tuple[int, ...]
    devices: int
    nodes: int = 0

    @property
    def per_node(self) -> int:
        """Devices on each node; 0: any."""
        return -(-self.devices // self.nodes) if self.nodes else 0


class ShapeOnNodes:
    """Shape with its nodes as an array, which answers whether and where free devices hold it."""

    def __init__(self, shape: Shape) -> None:
        self.pool: Ints = np.array(shape.pool, np.int64)
        self.devices, self.nodes, self.per_node = shape.devices, shape.nodes, shape.per_node

    def fits(self, free: Ints) -> bool:
        """Return whether free devices by node hold it."""
        there = free[self.pool]
        if self.nodes:
            return bool(np.count_nonzero(there >= self.per_node) >= self.nodes)
        return bool(there.sum() >= self.devices)

    def first_fit(self, free: Ints) -> int:
        """Return the first row of free devices by time and node that holds it; -1 if none does."""
        there = free[:, self.pool]
        enough = (
            np.count_nonzero(there >= self.per_node, axis=1) >= self.nodes if self.nodes else there.sum(axis=1) >= self.devices
        )
        row = int(enough.argmax())
        return row if enough[row] else -1

    def place(self, free: Ints) -> Placement:
        """Return devices by node, on the nodes with the fewest free devices that suffice."""
        there = free[self.pool]
        if self.nodes:
            enough = np.flatnonzero(there >= self.per_node)
            chosen = enough[np.argsort(there[enough], kind="stable")[: self.nodes]]
            return tuple((node, self.per_node) for node in self.pool[chosen].tolist())
        whole = np.flatnonzero(there >= self.devices)
        if whole.size:
            return ((int(self.pool[whole[there[whole].argmin()]]), self.devices),)
        rest, parts = self.devices, []
        for index in np.argsort(-there, kind="stable").tolist():
            count = min(rest, int(there[index]))
            if count <= 0:
                break
            parts.append((int(self.pool[index]), count))
            rest -= count
            if not rest:
                break
        return tuple(parts)


def backfill_starts(
    now_s: float,
    free: Ints,
    planned: Sequence[tuple[float, Placement]],
    waiting: Sequence[int],
    shapes: Sequence[ShapeOnNodes],
    shape_of: Sequence[int],
    limit_s: Sequence[float],
    depth: int,
    fitting: set[int],
    arrays: Sequence[int] = (),
    room: Sequence[int] = (),
) -> list[tuple[int, Placement]]:
    """Return the jobs that start now, with their devices.

    Args:
        free: free devices of each node.
        planned: end by its limit, and devices, of each job that runs.
        waiting: jobs that wait, the first to start first.
        shapes: distinct shapes. ``shape_of``: shape of each job. ``limit_s``: limit of each job.
        depth: number of waiting jobs for which devices are reserved.
        fitting: shapes of waiting jobs that fit the free devices.
        arrays: array of each job whose tasks have a throttle; -1: none. ``room``: tasks of each array that may start. Further
            tasks have no reservation.
    """
    left = list(room)
    started: list[tuple[int, Placement]] = []
    plan: _Plan | None = None
    free = free.copy()
    refused: dict[int, float] = {}
    """Shortest limit of each shape that would delay a reservation."""
    reserved = 0
    for job in waiting:
        shape, array = shape_of[job], arrays[job] if arrays else -1
        needs = shapes[shape]
        if array >= 0 and left[array] <= 0:
            continue
        if shape in fitting:
            if plan is None or not reserved:
                placement = needs.place(free)
            elif limit_s[job] >= refused.get(shape, np.inf):
                placement = ()
            else:
                placement = plan.now(needs, limit_s[job])
            if placement:
                started.append((job, placement))
                if array >= 0:
                    left[array] -= 1
                for node, count in placement:
                    free[node] -= count
                if plan is not None:
                    plan.take(0, now_s + limit_s[job], placement)
                fitting = {other for other in fitting if shapes[other].fits(free)}
                if not fitting:
                    break
                continue
            refused[shape] = min(limit_s[job], refused.get(shape, np.inf))
        if reserved < depth:
            if plan is None:
                ends = [*planned, *((now_s + limit_s[first], placed) for first, placed in started)]
                plan = _Plan(now_s, free, ends)
            plan.reserve(needs, limit_s[job])
            reserved += 1
            if array >= 0:
                left[array] -= 1
    return started


class _Plan:
    """Free devices by time and node, by the limits of jobs that run and the reservations of jobs that wait."""

    def __init__(self, now_s: float, free: Ints, planned: Sequence[tuple[float, Placement]]) -> None:
        ends = sorted(planned, key=lambda pair: pair[0])
        self.moments: Array = np.array([now_s, *(max(end, now_s + 1.0) for end, _ in ends)])
        self.free: Ints = np.zeros((len(self.moments), len(free)), np.int64)
        for row, (_, placement) in enumerate(ends, start=1):
            for node, count in placement:
                self.free[row, node] = count
        self.free[0] = free
        np.cumsum(self.free, axis=0, out=self.free)

    def now(self, needs: ShapeOnNodes, limit_s: float) -> Placement:
        """Return devices that stay free from now until a limit; empty if there are too few."""
        until = int(np.searchsorted(self.moments, self.moments[0] + limit_s, side="left"))
        least = self.free[:until].min(axis=0) if until > 1 else self.free[0]
        return needs.place(least) if needs.fits(least) else ()

    def reserve(self, needs: ShapeOnNodes, limit_s: float) -> None:
        """Reserve devices at the earliest time at which they stay free until the limit. Nothing is reserved without any."""
        first = 0
        while first < len(self.moments):
            row = needs.first_fit(self.free[first:])
            if row < 0:
                return
            first += row
            until = int(np.searchsorted(self.moments, self.moments[first] + limit_s, side="left"))
            least = self.free[first : max(until, first + 1)].min(axis=0)
            if needs.fits(least):
                self.take(first, float(self.moments[first]) + limit_s, needs.place(least))
                return
            first += 1

    def take(self, first: int, end_s: float, placement: Placement) -> None:
        """Take devices from a row until a time."""
        until = int(np.searchsorted(self.moments, end_s, side="left"))
        if (until < len(self.moments) and self.moments[until] != end_s) or until == len(self.moments):
            self.moments = np.insert(self.moments, until, end_s)
            self.free = np.insert(self.free, until, self.free[until - 1], axis=0)
        for node, count in placement:
            self.free[first:until, node] -= count
