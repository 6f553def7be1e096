"""The picture of steps on a time axis: every run predicted above measured, one row for each lane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.chrome_trace import LANES
from paceline.record import Event
from paceline.reporting.report_figures import PALETTE, canvas, to_svg
from paceline.reporting.values import clean, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAPS = 400
"""A gap of less than this part of the picture cannot be seen."""
MAX_BARS = 400
"""Bars drawn in one row: more cannot be told apart, and the page would be megabytes."""


@dataclass(frozen=True)
class StepTimeline:
    """The step of one run: a heading, the events (seconds), and the step's length as the metrics have it."""

    title: str
    events: tuple[Event, ...]
    step_time_s: float


def one_rank(events: Sequence[Event]) -> tuple[Event, ...]:
    """The events of the lowest rank: one worker stands for the others, which do the same."""
    rank = min((e.rank for e in events), default=0)
    return tuple(e for e in events if e.rank == rank)


def merged(events: Sequence[Event], most: int = 60) -> tuple[Event, ...]:
    """At most about ``most`` bars in a row: neighbours that do the same (``forward``, ``backward``) become one bar, unless a
    gap that can be seen lies between them.

    Nothing is cut off at the end of a step of many layers; the name says which layers a bar is, and which part of it they take.
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
    """A bar from the first to the last of ``run``."""
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
    """The unit in which ``longest`` seconds has one to three digits before the point: (seconds of it, name)."""
    return next(((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if longest >= s), (1e-6, "µs"))


def draw(timelines: Sequence[StepTimeline], name: str, label: str) -> str:
    """All groups below each other on one time axis, as SVG. At least one group must have events."""
    ends = [e.end_s for g in timelines for e in g.events] + [g.step_time_s for g in timelines]
    end = max([1e-9, *filter(math.isfinite, ends)])
    scale, unit = unit_of(end)
    rows = [_lanes(group) for group in timelines]
    heights = [1.15 + len(lanes) for lanes in rows]
    tips: dict[str, str] = {}
    with canvas(9.8, 0.75 + 0.235 * (sum(heights) + 0.55 * (len(timelines) - 1))) as figure:
        axes = figure.add_subplot()
        top = 0.0
        ticks: list[tuple[float, str]] = []
        for n, (group, lanes, height) in enumerate(zip(timelines, rows, heights, strict=True)):
            ticks += _draw_step(axes, group, lanes, top, scale, end / scale, f"bar-{n}", tips)
            top += height + 0.55
        axes.set_ylim(top - 0.3, -0.15)
        axes.set_xlim(0, end / scale * 1.02)
        axes.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
        axes.set_xlabel(f"time from the start of the step, {unit}")
        axes.grid(axis="x")
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        return to_svg(figure, name, label, tips)


def _lanes(timeline: StepTimeline) -> list[str]:
    used = {e.lane for e in timeline.events}
    return [*(lane for lane in LANES if lane in used), *sorted(used - set(LANES))]


def _draw_step(
    axes: Axes, timeline: StepTimeline, lanes: list[str], top: float, scale: float, end: float, gid: str, tips: dict[str, str]
) -> list[tuple[float, str]]:
    """Draw one group below ``top`` (rows); returns the labels of its lanes as (row, text)."""
    axes.text(0, top + 0.45, timeline.title, va="center", weight="bold", fontsize=9)
    ticks = []
    for row, lane in enumerate(lanes):
        y = top + 1.5 + row
        ticks.append((y, lane))
        bars = sorted((e for e in timeline.events if e.lane == lane), key=lambda e: e.start_s)[:MAX_BARS]
        for k, event in enumerate(bars):
            free = bars[k + 1].start_s / scale if k + 1 < len(bars) else end
            if event.end_s < timeline.step_time_s * 0.999:  # a name does not cross the line that ends the step
                free = min(free, timeline.step_time_s / scale)
            _bar(axes, event, y, scale, free, end, f"{gid}-{row}-{k}", tips)
    x = timeline.step_time_s / scale  # NaN where unknown, which draws nothing
    axes.plot([x, x], [top + 1.0, top + 1.1 + len(lanes)], color=PALETTE["ink"], linewidth=1.4, solid_capstyle="butt")
    return ticks


def _bar(axes: Axes, event: Event, y: float, scale: float, free: float, end: float, gid: str, tips: dict[str, str]) -> None:
    """One bar with its name inside, or to its right where nothing comes before ``free``, else only as a tooltip."""
    from matplotlib.patches import Rectangle

    lane = event.lane if event.lane in PALETTE else "other"
    start, width = event.start_s / scale, event.duration_s / scale
    axes.add_patch(
        Rectangle(
            (start, y - 0.39),
            width,
            0.78,
            gid=gid,
            linewidth=0.8,
            facecolor=PALETTE[f"{lane}-soft"],
            edgecolor=PALETTE[lane],
        )
    )
    name = clean(event.name, 60)
    tips[gid] = f"{name}: {seconds(event.duration_s)}, from {seconds(event.start_s)} to {seconds(event.end_s)}"
    # about 150 characters of this size fit the axis
    needed = len(name) / 150 * end
    if needed <= width:
        axes.text(start + width / 2, y, name, ha="center", va="center_baseline", fontsize=7.5)
    elif start + width + needed * 1.1 <= free:
        axes.annotate(name, (start + width, y), xytext=(3, 0), textcoords="offset points", va="center_baseline", fontsize=7.5)
