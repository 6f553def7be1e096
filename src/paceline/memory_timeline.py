"""Memory of one step over time: when each tensor of a device is allocated and freed.

A prediction makes it (``Prediction.memory_timeline``), and the terminal, the figures and ``memory_snapshot`` read it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from paceline.array_types import Array, Ints
from paceline.record import Event

MARGIN = "margin"
"""Purpose of the bytes that a prediction adds up although they are not needed at once."""
CONTEXT, COMMUNICATORS, FRAGMENTS, POOLS = "context", "communicators", "fragments", "stream pools"
OUTSIDE = (CONTEXT, COMMUNICATORS)
"""Purposes outside PyTorch's allocator: a device's total counts them, ``torch.cuda.max_memory_reserved`` does not."""
BEYOND = (*OUTSIDE, POOLS, FRAGMENTS)
"""Purposes of the bytes that no tensor holds: ``torch.cuda.max_memory_allocated`` does not count them."""
_SAME_TIME = 1e-9
"""Share of a step within which two times are equal: rounding."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One tensor, or several of one purpose that are allocated together.

    Attributes:
        name: layer or unit that needs it.
        bytes: size on one device.
        start_s, end_s: seconds after the start of the step. Infinite if it is there before and after the step.
    """

    purpose: str
    name: str
    bytes: float
    start_s: float = -math.inf
    end_s: float = math.inf

    @property
    def held(self) -> bool:
        """True if it is there before and after the step."""
        return math.isinf(self.start_s)


@dataclass(frozen=True, slots=True)
class Curve:
    """Allocated bytes over time, as steps: each row holds until the time of the next.

    Attributes:
        times: seconds, (rows,), never falling.
        purposes: names of the columns of ``sizes``, which is (rows, purposes).
    """

    times: Array
    purposes: tuple[str, ...]
    sizes: Array

    @property
    def totals(self) -> Array:
        """Bytes of all purposes together, (rows,)."""
        return np.asarray(self.sizes.sum(axis=1))

    def sampled(self, columns: int, end_s: float) -> Curve:
        """Return one row for each of ``columns`` equal intervals until ``end_s``: the fullest moment in it."""
        edges = np.linspace(0.0, end_s, columns + 1)
        first = np.searchsorted(self.times, edges[:-1], "left")
        same = self.times[np.minimum(first, len(self.times) - 1)] == edges[:-1]
        first = np.where(same, first, first - 1)  # the row before holds, unless a new one begins there
        last = np.append(np.searchsorted(self.times, edges[1:-1], "left"), len(self.times))
        totals = self.totals
        rows = [a + int(np.argmax(totals[a : max(b, a + 1)])) for a, b in zip(first.tolist(), last.tolist(), strict=False)]
        return Curve(edges[:-1], self.purposes, self.sizes[np.array(rows, dtype=np.int64)])


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryTimeline:
    """Memory of one step on ranks that do the same.

    Attributes:
        ranks: the ranks. ``stage``: their pipeline stage, of ``stages``.
        allocations: all tensors.
        passes: ``forward``, ``backward`` and ``optimizer`` as bars.
        memory: predicted bytes by purpose, as in ``Prediction.memory``.
        step_s: seconds of the step.
        available: bytes of a device. ``span``: least and most bytes that the step may need.
    """

    ranks: range
    stage: int
    stages: int
    allocations: tuple[Allocation, ...]
    passes: tuple[Event, ...]
    memory: Mapping[str, float]
    step_s: float
    available: float
    span: tuple[float, float]

    @property
    def title(self) -> str:
        """The ranks in words: ``ranks 0-7, stage 1 of 4``."""
        who = f"ranks {self.ranks_text}" if len(self.ranks) > 1 else f"rank {self.ranks_text}"
        return f"{who}, stage {self.stage + 1} of {self.stages}" if self.stages > 1 else who

    @property
    def ranks_text(self) -> str:
        """The numbers of the ranks: ``0-7``."""
        first, last = self.ranks[0], self.ranks[-1]
        return f"{first:,}-{last:,}" if last > first else f"{first:,}"

    @property
    def beyond(self) -> dict[str, float]:
        """Bytes by purpose that no tensor holds."""
        return {name: self.memory[name] for name in BEYOND if self.memory.get(name)}

    @property
    def peak_bytes(self) -> float:
        """Predicted bytes at the fullest moment, with those that no tensor holds."""
        return math.fsum(self.at_peak.values())

    @property
    def peak_s(self) -> float:
        """Seconds after the start of the step at which memory is fullest."""
        return float(self.curve.times[self._peak])

    @property
    def peak_pass(self) -> str:
        """The pass that runs at the peak, with the layers of its allocations: ``backward``, ``optimizer``."""
        at = self.peak_s + _SAME_TIME * self.step_s
        running = [p.name for p in self.passes if p.start_s <= at < p.end_s]
        before = [p.name for p in self.passes if p.start_s <= at]
        return next(iter([*running, *reversed(before)]), "")

    @cached_property
    def at_peak(self) -> dict[str, float]:
        """Bytes by purpose at the fullest moment, with those that no tensor holds. They sum to ``peak_bytes``."""
        alive = self.alive_at_peak
        purposes = [name for name in self.curve.purposes if any(a.purpose == name for a in alive)]
        sizes = {name: math.fsum(a.bytes for a in alive if a.purpose == name) for name in purposes}
        return {**sizes, **({MARGIN: self.margin} if self.margin else {}), **self.beyond}

    @cached_property
    def margin(self) -> float:
        """Predicted bytes that this timeline never needs at once, such as two largest parts at different times."""
        needed = math.fsum(size for name, size in self.memory.items() if name not in BEYOND)
        margin = needed - math.fsum(a.bytes for a in self.alive_at_peak)
        return margin if margin > _SAME_TIME * needed else 0.0

    @cached_property
    def alive_at_peak(self) -> tuple[Allocation, ...]:
        """Allocations that are there at the fullest moment."""
        _, order = self._groups
        peak = self._rows[1][self._peak]
        alive = (order[:, 0] <= peak) & (peak < order[:, 1])
        now = [a for a, there in zip(self._passing, alive.tolist(), strict=True) if there]
        return (*(a for a in self.allocations if a.held), *now)

    def changes(self) -> Iterator[tuple[float, Allocation, bool]]:
        """Yield each allocation and each free in order: seconds, the tensor, and whether it is allocated."""
        distinct, order = self._groups
        events = sorted((place, index, kind) for index, row in enumerate(order.tolist()) for kind, place in enumerate(row))
        for place, index, kind in events:
            yield float(distinct[place // 3]), self._passing[index], kind == 0

    def largest_at_peak(self, count: int) -> list[tuple[str, str, int, float]]:
        """Return the largest kinds of tensors at the peak: purpose, name without block numbers, number of them, bytes.

        State that is one allocation for all layers is left out.
        """
        kinds: dict[tuple[str, str], tuple[int, float]] = {}
        for a in self.alive_at_peak:
            if a.held:
                continue
            kind = a.purpose, _NUMBER.sub("*", a.name)
            number, size = kinds.get(kind, (0, 0.0))
            kinds[kind] = number + 1, size + a.bytes
        rows = [(purpose, name, number, size) for (purpose, name), (number, size) in kinds.items()]
        return sorted(rows, key=lambda row: -row[3])[:count]

    @cached_property
    def curve(self) -> Curve:
        """Allocated bytes by purpose over the step, without margin."""
        times, _, sizes, purposes = self._rows
        held = [math.fsum(a.bytes for a in self.allocations if a.held and a.purpose == name) for name in purposes]
        return Curve(times, purposes, np.maximum(0.0, sizes) + np.array(held))

    @cached_property
    def _peak(self) -> int:
        totals = self.curve.totals
        return int(np.argmax(totals >= (1 - _SAME_TIME) * totals.max()))  # the first of equal ones

    @cached_property
    def _passing(self) -> tuple[Allocation, ...]:
        return tuple(a for a in self.allocations if not a.held)

    @cached_property
    def _groups(self) -> tuple[Array, Ints]:
        """Return the distinct times, and the position of each passing allocation's events among all phases.

        At one time, earlier tensors are freed first, then new ones are allocated, then those freed that last no time.
        """
        both = np.array([(a.start_s, a.end_s) for a in self._passing]).reshape(-1, 2)
        ordered = np.sort(both, axis=None)
        new = np.diff(ordered, prepend=-math.inf) > _SAME_TIME * self.step_s
        distinct = ordered[new]
        place = np.cumsum(new)[np.searchsorted(ordered, both)] - 1
        start, end = place[:, 0], place[:, 1]
        return distinct, np.stack([3 * start + 1, 3 * end + 2 * (end == start)], axis=1)

    @cached_property
    def _rows(self) -> tuple[Array, Ints, Array, tuple[str, ...]]:
        """Return the rows of the curve: times, positions among all phases, bytes that pass, and the purposes."""
        purposes = tuple(dict.fromkeys(a.purpose for a in sorted(self.allocations, key=lambda a: not a.held)))
        column = {name: number for number, name in enumerate(purposes)}
        distinct, order = self._groups
        width, count = len(purposes), 3 * len(distinct)
        columns = np.array([column[a.purpose] for a in self._passing], dtype=np.int64)
        sizes = np.array([a.bytes for a in self._passing])
        begun, ended = (np.bincount(at * width + columns, sizes, count * width) for at in order.T)
        after = np.cumsum((begun - ended).reshape(count, width), axis=0)
        brief = np.zeros(len(distinct), dtype=np.bool_)
        brief[order[order[:, 0] + 1 == order[:, 1], 0] // 3] = True
        kept = np.sort(np.concatenate([3 * np.arange(len(distinct)) + 1, 3 * np.flatnonzero(brief) + 2]))
        times = np.concatenate([[0.0], distinct[kept // 3]])
        none = np.zeros((1, len(purposes)))
        return times, np.concatenate([[-1], kept]), np.concatenate([none, after[kept]]), purposes

    def stretched(self, factor: float) -> MemoryTimeline:
        """Return the timeline with all times multiplied by ``factor``, which is 0 or more."""
        if factor == 1 or not self.step_s:
            return self
        made = (a if a.held else replace(a, start_s=a.start_s * factor, end_s=a.end_s * factor) for a in self.allocations)
        bars = (replace(bar, start_s=bar.start_s * factor, duration_s=bar.duration_s * factor) for bar in self.passes)
        return replace(self, allocations=tuple(made), passes=tuple(bars), step_s=self.step_s * factor)

    def to_json(self, points: int = 200) -> dict[str, Any]:
        """Return a plain dict: the peak, its parts, and the curve at ``points`` times, each the fullest of its interval."""
        curve = self.curve.sampled(points, self.step_s)
        over_time = {
            "times_s": curve.times.tolist(),
            "bytes": {name: curve.sizes[:, number].tolist() for number, name in enumerate(curve.purposes)},
        }
        return {
            "ranks": [self.ranks[0], self.ranks[-1]],
            "stage": self.stage,
            "peak_bytes": self.peak_bytes,
            "peak_s": self.peak_s,
            "peak_pass": self.peak_pass,
            "least_bytes": self.span[0],
            "most_bytes": self.span[1],
            "at_peak": self.at_peak,
            "largest": [
                {"purpose": purpose, "name": name, "count": number, "bytes": size}
                for purpose, name, number, size in self.largest_at_peak(10)
            ],
            "step_time_s": self.step_s,
            **(over_time if points else {}),
        }


def fullest(timelines: Sequence[MemoryTimeline]) -> MemoryTimeline:
    """Return the timeline with the highest peak."""
    return max(timelines, key=lambda timeline: timeline.peak_bytes)


def of_rank(timelines: Sequence[MemoryTimeline], rank: int) -> MemoryTimeline | None:
    """Return the timeline of a rank; None if there is no such rank."""
    return next((timeline for timeline in timelines if rank in timeline.ranks), None)


def merged_passes(passes: Iterator[Event]) -> Iterator[Event]:
    """Yield the bars with adjacent ones of one name joined."""
    joined: Event | None = None
    for bar in passes:
        if joined is not None and bar.name == joined.name:
            joined = Event(name=bar.name, lane=bar.lane, start_s=joined.start_s, duration_s=bar.end_s - joined.start_s)
            continue
        if joined is not None:
            yield joined
        joined = bar
    if joined is not None:
        yield joined
