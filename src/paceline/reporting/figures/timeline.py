"""Figure of steps on a time axis: each run's prediction above its measurement, one row for each lane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from paceline.chrome_trace import LANES
from paceline.record import Event
from paceline.reporting.figures.plot import LINE, Plot, Scale, tick
from paceline.reporting.values import clean, seconds

GAPS = 400
"""A gap of less than this part of the picture cannot be seen."""
MAX_BARS = 400
"""Bars drawn in one row: more cannot be told apart, and the page would be megabytes."""
ROW, BAR = 24.0, 18.0
"""Pixels from row to row, and of a bar."""


@dataclass(frozen=True)
class StepTimeline:
    """Step of one run: a heading, the events (seconds), and the step's length in the metrics."""

    title: str
    events: tuple[Event, ...]
    step_time_s: float


def one_rank(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events of the lowest rank, because all workers do the same."""
    rank = min((e.rank for e in events), default=0)
    return tuple(e for e in events if e.rank == rank)


def merged(events: Sequence[Event], most: int = 60) -> tuple[Event, ...]:
    """Merge adjacent bars of the same kind (``forward``, ``backward``) to at most about ``most`` per row, unless a visible gap
    separates them.

    A step of many layers is shown to its end. The name of a bar gives its layers and the share of its time that they take.
    """
    kept: list[Event] = []
    seen = max((e.end_s for e in events), default=0.0) / GAPS
    for lane in dict.fromkeys(e.lane for e in events):
        bars = sorted((e for e in events if e.lane == lane), key=lambda e: e.start_s)
        together = -(-len(bars) // most)
        run: list[Event] = []
        for event in bars:
            apart = lane in ("compute", "wait") and run and event.start_s - run[-1].end_s > seen
            if run and (len(run) >= together or apart or _verb(event) != _verb(run[0])):
                kept.append(_joined(run))
                run = []
            run.append(event)
        kept += [_joined(run)] if run else []
    return tuple(kept)


def _verb(event: Event) -> str:
    return event.name if event.lane == "wait" else event.name.partition(" ")[0]


def _joined(run: Sequence[Event]) -> Event:
    """Join a run of bars into one from its first to its last."""
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    name, span = first.name, last.end_s - first.start_s
    if first.name != last.name:
        name = f"{first.name} to {last.name.removeprefix(f'{_verb(first)} ')}"
    busy = sum(event.duration_s for event in run)
    if busy < 0.99 * span:
        name = f"{name} ({busy / span:.0%} of the time)"
    return Event(name=name, lane=first.lane, start_s=first.start_s, duration_s=span, rank=first.rank)


def unit_of(longest: float) -> tuple[float, str]:
    """Return the unit in which ``longest`` seconds has one to three digits before the point, as (seconds of it, name)."""
    return next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if longest >= s), (1e-6, "µs"))


def draw(timelines: Sequence[StepTimeline], label: str) -> str:
    """Draw all groups one below the other on one time axis, as SVG. At least one group must have events."""
    ends = [e.end_s for g in timelines for e in g.events] + [g.step_time_s for g in timelines]
    end = max([1e-9, *filter(math.isfinite, ends)])
    unit_s, unit = unit_of(end)
    x = Scale(0, 1.02 * end)
    plot, y = Plot(), 0.0
    tops = []
    for group in timelines:
        tops.append(y)
        y += LINE * len(_titles(group)) + 8 + ROW * len(_lanes(group)) + 12
    marks = [(x.share(mark * unit_s), tick(mark)) for mark in Scale(0, x.high / unit_s).ticks(6)]
    height = plot.x_axis(y - 6, 4, marks, f"time from the start of the step, {unit}")
    for group, top in zip(timelines, tops, strict=True):
        _draw_step(plot, group, top, x)
    return plot.svg(height, label, "lanes")


def _lanes(timeline: StepTimeline) -> list[str]:
    used = {e.lane for e in timeline.events}
    return [*(lane for lane in LANES if lane in used), *sorted(used - set(LANES))]


def _titles(timeline: StepTimeline) -> list[str]:
    """Break the title into lines that fit a phone."""
    return wrap(timeline.title, 36) or [""]


def _draw_step(plot: Plot, timeline: StepTimeline, top: float, x: Scale) -> None:
    """Draw one group below ``top``: its title, a row for each lane, the line that ends the step."""
    titles = _titles(timeline)
    for n, title in enumerate(titles):
        plot.text(0, top + 14 + n * LINE, title, "title")
    lanes, first = _lanes(timeline), top + LINE * len(titles) + 8
    for row, lane in enumerate(lanes):
        y = first + ROW * row
        plot.text(0, y + BAR - 5, clean(lane, 12), "axis", "end", -8)
        bars = sorted((e for e in timeline.events if e.lane == lane), key=lambda e: e.start_s)[:MAX_BARS]
        for k, event in enumerate(bars):
            free = bars[k + 1].start_s if k + 1 < len(bars) else x.high
            if event.end_s < timeline.step_time_s * 0.999:  # a name does not cross the line that ends the step
                free = min(free, timeline.step_time_s)
            _bar(plot, event, y, x, free)
    if math.isfinite(timeline.step_time_s):
        step = x.share(timeline.step_time_s)
        plot.line(step, first - 5, step, first + ROW * len(lanes), "stroke")


def _bar(plot: Plot, event: Event, y: float, x: Scale, free: float) -> None:
    """Draw one bar with its name inside, to its right if there is room before ``free``, or only as a tooltip."""
    start, end = x.share(event.start_s), x.share(event.end_s)
    name = clean(event.name, 60)
    tip = f"{name}: {seconds(event.duration_s)}, from {seconds(event.start_s)} to {seconds(event.end_s)}"
    plot.rect(start, y, end - start, BAR, event.lane if event.lane in LANES and event.lane != "wait" else "other", tip)
    if not plot.fitting((start + end) / 2, y + BAR - 5, end - start, name, "middle"):
        plot.fitting(end, y + BAR - 5, x.share(free) - end, name, dx=4)
