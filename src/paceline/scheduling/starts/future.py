"""One future of a queue: given the length of each job and the jobs still to come, the time at which each job starts."""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.placement import Placement
from paceline.scheduling.starts.backfill import ShapeOnNodes, backfill_starts

FARTHEST_S = 400 * 86400.0
"""Simulated time after which a job counts as never started."""


@dataclass(frozen=True)
class JobTable:
    """Jobs of a queue as columns, the same in every future. Times are seconds after the present.

    Attributes:
        shapes: distinct shapes. ``shape_of``: shape of each job.
        limit_s: stated limit; ``UNLIMITED_S`` without one.
        ran_s: time since the start, of jobs that run; 0 for others.
        held: placement of jobs that run; empty: it waits or is to come.
        priority: higher starts first. ``submit_s``: submission, the earlier first among jobs of one priority; negative for jobs
            that wait. The submission of a job to come is its arrival.
        waiting: jobs that wait at the present.
        array_of: number of the array of each job whose tasks have a throttle; -1: none. ``throttle``: most tasks of each array
            that run at once.
    """

    free: Ints
    shapes: tuple[ShapeOnNodes, ...]
    shape_of: tuple[int, ...]
    limit_s: tuple[float, ...]
    ran_s: tuple[float, ...]
    held: tuple[Placement, ...]
    priority: tuple[float, ...]
    submit_s: tuple[float, ...]
    waiting: tuple[int, ...]
    depth: int = 32
    array_of: tuple[int, ...] = ()
    throttle: tuple[int, ...] = ()

    @property
    def arrays(self) -> tuple[int, ...]:
        """Number of the array of each job; -1: none."""
        return self.array_of or (-1,) * len(self.shape_of)


Coming = tuple[Array, Ints]
"""Jobs to come in one future: arrival of each in seconds after the present, in order, and its row in the table."""


def starts_of(table: JobTable, length_s: Sequence[float], arrivals: Coming, targets: Sequence[int]) -> Array:
    """Return the start of each target in seconds after the present; inf if it never starts.

    Args:
        length_s: whole length of each job's run.
        arrivals: jobs still to come.
        targets: waiting jobs whose starts end the simulation.
    """
    return _Future(table, length_s, arrivals, targets).run()


class _Future:
    """State of one simulated future."""

    def __init__(self, table: JobTable, length_s: Sequence[float], arrivals: Coming, targets: Sequence[int]) -> None:
        self.table, self.length_s = table, length_s
        self.arrives_s, self.arriving = arrivals[0].tolist(), arrivals[1].tolist()
        self.free = table.free.copy()
        self.ends: list[tuple[float, int]] = []
        self.planned: dict[int, tuple[float, Placement]] = {}
        self.waiting: list[tuple[tuple[float, float], int]] = []
        self.counts = [0] * len(table.shapes)
        self.arrays, self.room = table.arrays, list(table.throttle)
        for job, placement in enumerate(table.held):
            if placement:
                heapq.heappush(self.ends, (max(length_s[job] - table.ran_s[job], 1.0), job))
                self.planned[job] = (table.limit_s[job] - table.ran_s[job], placement)
                self._take(job, 1)
        for job in table.waiting:
            self._wait(job, table.submit_s[job])
        self.targets = set(targets)
        self.order = list(targets)
        self.start_s = dict.fromkeys(targets, math.inf)

    def _take(self, job: int, tasks: int) -> None:
        """Count tasks of a job's array that run."""
        if self.arrays[job] >= 0:
            self.room[self.arrays[job]] -= tasks

    def _wait(self, job: int, since_s: float) -> None:
        insort(self.waiting, ((-self.table.priority[job], since_s), job))
        self.counts[self.table.shape_of[job]] += 1

    def run(self) -> Array:
        now_s, next_arrival = 0.0, 0
        while True:
            self._start(now_s)
            if not self.targets:
                break
            end = self.ends[0][0] if self.ends else math.inf
            arrival = self.arrives_s[next_arrival] if next_arrival < len(self.arrives_s) else math.inf
            now_s = min(end, arrival)
            if now_s > FARTHEST_S:
                break
            while self.ends and self.ends[0][0] <= now_s:
                job = heapq.heappop(self.ends)[1]
                self._take(job, -1)
                for node, count in self.planned.pop(job)[1]:
                    self.free[node] += count
            while next_arrival < len(self.arrives_s) and self.arrives_s[next_arrival] <= now_s:
                self._wait(self.arriving[next_arrival], self.arrives_s[next_arrival])
                next_arrival += 1
        return np.array([self.start_s[job] for job in self.order])

    def _start(self, now_s: float) -> None:
        table = self.table
        fitting = {shape for shape, count in enumerate(self.counts) if count and table.shapes[shape].fits(self.free)}
        if not fitting:
            return
        order = [job for _, job in self.waiting]
        started = backfill_starts(
            now_s,
            self.free,
            list(self.planned.values()),
            order,
            table.shapes,
            table.shape_of,
            table.limit_s,
            table.depth,
            fitting,
            self.arrays,
            self.room,
        )
        if not started:
            return
        gone = set()
        for job, placement in started:
            gone.add(job)
            for node, count in placement:
                self.free[node] -= count
            heapq.heappush(self.ends, (now_s + max(self.length_s[job], 1.0), job))
            self.planned[job] = (now_s + table.limit_s[job], placement)
            self._take(job, 1)
            self.counts[table.shape_of[job]] -= 1
            if job in self.targets:
                self.targets.discard(job)
                self.start_s[job] = now_s
        self.waiting = [pair for pair in self.waiting if pair[1] not in gone]


def starts_of_many(table: JobTable, length_s: Array, arrivals: Sequence[Coming], targets: Sequence[int]) -> Array:
    """Return the start of each target in each future, of shape (futures, targets), as ``starts_of`` defines it.

    Args:
        length_s: whole length of each job's run in each future, of shape (futures, jobs).
        arrivals: jobs to come in each future.
    """
    native = _native()
    if native is None:
        rows = zip(length_s.tolist(), arrivals, strict=True)
        return np.array([starts_of(table, row, coming, targets) for row, coming in rows])
    starts = np.empty((len(length_s), len(targets)))
    native(
        table.free.astype(np.int64),
        _bounds(shape.pool for shape in table.shapes),
        np.concatenate([shape.pool for shape in table.shapes]),
        np.array([shape.devices for shape in table.shapes], np.int64),
        np.array([shape.nodes for shape in table.shapes], np.int64),
        np.array(table.shape_of, np.int64),
        np.array(table.limit_s, float),
        np.array(table.ran_s, float),
        np.array(table.priority, float),
        np.array(table.submit_s, float),
        _bounds(table.held),
        np.array([node for placement in table.held for node, _ in placement], np.int64),
        np.array([count for placement in table.held for _, count in placement], np.int64),
        np.array(table.waiting, np.int64),
        np.ascontiguousarray(length_s, float),
        _bounds(rows for _, rows in arrivals),
        np.concatenate([rows for _, rows in arrivals]).astype(np.int64),
        np.concatenate([moments for moments, _ in arrivals]).astype(float),
        np.array(targets, np.int64),
        table.depth,
        np.array(table.arrays, np.int64),
        np.array(table.throttle, np.int64),
        FARTHEST_S,
        starts,
    )
    return starts


def _bounds(parts: Iterable[Sized]) -> Ints:
    """Return the first position of each part when they are joined, and the end of the last."""
    return np.cumsum([0, *map(len, parts)], dtype=np.int64)


def _native() -> Callable[..., None] | None:
    """Return the compiled simulation, or None where the package was compiled without it."""
    try:
        from paceline._native import queue_starts
    except ImportError:
        return None
    return queue_starts
