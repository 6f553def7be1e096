"""Waits of a device, as bars in a separate lane. With the bars of its computing they fill the step without a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from paceline.record import Event

LANE = "wait"
BUBBLE = "pipeline bubble"
OVERLAP_LOSS = "overlap loss"
"""Name of the time that compute and collectives lose by running at once, drawn after their end."""
BETWEEN = "exchange between workers"
"""Name of the mean wait for the workers of local steps, after the optimizer."""
_ROUNDING = 1e-10
"""Share of a step below which a gap is a rounding error."""


def wait(name: str, start_s: float, seconds: float) -> Event:
    """Return a wait as a bar."""
    return Event(name=name, lane=LANE, start_s=start_s, duration_s=seconds)


def in_turn(start_s: float, waits: Sequence[tuple[str, float]]) -> Iterator[Event]:
    """Yield consecutive waits from ``start_s`` on, without those that are 0 up to rounding."""
    for name, seconds in waits:
        if seconds > _ROUNDING * start_s:
            yield wait(name, start_s, seconds)
            start_s += seconds


def waits(bars: Sequence[Event], step_s: float, known: Sequence[Event] = (), otherwise: str = "wait") -> tuple[Event, ...]:
    """Return the gaps between the bars of computing, from 0 to ``step_s`` seconds, named after the work that runs in them.

    Args:
        bars: bars of the lane ``compute``, and of the lanes that it may wait for. If several run in a gap, the device waits for
            the last to end, and for the input only if nothing else runs.
        known: waits with known names, which take precedence.
        otherwise: name of a gap in which nothing runs.
    """
    others = [bar for bar in bars if bar.lane != "compute"]
    starts, ends = (np.array([getattr(bar, end) for bar in others]) for end in ("start_s", "end_s"))
    rows: list[Event] = []
    for begin, end in _gaps(bars, step_s):
        near = [bar for bar in known if bar.start_s < end and bar.end_s > begin]
        near += [others[i] for i in np.flatnonzero((starts < end) & (ends > begin))]
        for left, right in pairwise(_cuts(begin, end, near, _ROUNDING * step_s)):
            middle = (left + right) / 2
            name = _waited_for([bar for bar in near if bar.start_s <= middle < bar.end_s], otherwise)
            if rows and rows[-1].name == name and rows[-1].end_s >= left - _ROUNDING * step_s:
                rows[-1] = replace(rows[-1], duration_s=right - rows[-1].start_s)
            else:
                rows.append(wait(name, left, right - left))
    return tuple(rows)


def _gaps(bars: Sequence[Event], step_s: float) -> Iterator[tuple[float, float]]:
    """Yield the intervals in which nothing is computed."""
    clock = 0.0
    for bar in sorted((bar for bar in bars if bar.lane == "compute"), key=lambda bar: bar.start_s):
        if bar.start_s - clock > _ROUNDING * step_s:
            yield clock, bar.start_s
        clock = max(clock, bar.end_s)
    if step_s - clock > _ROUNDING * step_s:
        yield clock, step_s


def _cuts(begin: float, end: float, bars: Sequence[Event], least: float) -> list[float]:
    """Return the moments at which bars begin and end from ``begin`` to ``end``, at least ``least`` apart."""
    cuts = [begin]
    for cut in sorted(t for bar in bars for t in (bar.start_s, bar.end_s) if t < end - least):
        if cut > cuts[-1] + least:
            cuts.append(cut)
    return [*cuts, end]


def _waited_for(running: Sequence[Event], otherwise: str) -> str:
    """Return the name of a gap during which these bars run."""
    named = [bar.name for bar in running if bar.lane == LANE]
    if named:
        return named[0]
    last = max(running, key=lambda bar: (bar.lane != "input", bar.end_s), default=None)
    return otherwise if last is None else f"wait for {last.name.partition(' ')[0]}"
