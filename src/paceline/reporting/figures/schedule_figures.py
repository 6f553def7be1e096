"""SVG figures of schedules: jobs on nodes over time, the queue, completion times, and policies compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.reporting.figures.plot import LINE, Plot, Scale, tick
from paceline.reporting.values import clean, number, seconds
from paceline.scheduling.simulate.compare import Paired
from paceline.scheduling.simulate.schedule import ClusterSchedule, JobOutcome
from paceline.scheduling.simulate.simulated import SimulatedSchedule

ROWS = 48
"""Nodes that are drawn, the first of each type; the others are in the sums by type."""
BARS = 4000
"""Bars of one picture; what would be more is left to schedule.json."""
POINTS = 400
"""Moments of a line over time."""
COLOURS = 6
HEIGHT = 170.0


def time_unit(longest_s: float) -> tuple[str, float]:
    """Return the unit of a time axis and its seconds."""
    return next(
        ((u, s) for u, s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)) if longest_s >= 2 * s), ("s", 1.0)
    )


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Time axis of a figure: its origin and its end, by default the end of the last span."""

    since: str = "the trace's start"
    end_s: float | None = None


TRACE = Axis()


def span_of(schedule: ClusterSchedule, axis: Axis = TRACE) -> tuple[float, float]:
    """Return the span from the first arrival to the end of the axis."""
    ends = [span.end_s for outcome in schedule.outcomes for span in outcome.spans]
    first = min(outcome.job.arrival_s for outcome in schedule.outcomes)
    return first, max(max(ends, default=first + 1.0) if axis.end_s is None else axis.end_s, first + 1e-3)


def gantt(schedule: ClusterSchedule, axis: Axis = TRACE, names: Sequence[str] = ()) -> tuple[str, str]:
    """Draw the jobs on each node over time, with heights in proportion to their devices. Also return the omissions in words.

    Args:
        names: names of the nodes; by default their numbers and device types.
    """
    start, end = span_of(schedule, axis)
    unit, scale = time_unit(end - start)
    x = Scale(start / scale, end / scale)
    nodes = _drawn_nodes(schedule)
    lanes = {node: index for index, node in enumerate(nodes)}
    per_node, types = schedule.fleet.node_devices, schedule.fleet.node_types
    tall = 18.0 if len(nodes) <= 24 else 11.0
    plot, bars = Plot(), 0
    bottom = 4 + (tall + 3) * len(nodes)
    marks = [(x.share(mark), tick(mark)) for mark in x.ticks(6)]
    height = plot.x_axis(bottom, 0, marks, f"{unit} after {axis.since}")
    for node, lane in lanes.items():
        name = names[node] if names else f"{schedule.fleet.name(node)} {schedule.fleet.groups[types[node]].device}"
        plot.text(0, 4 + lane * (tall + 3) + tall - 5, clean(name, 10), "axis", "end", -6)
    free = {node: [-math.inf] * int(per_node[node]) for node in nodes}
    spans = [(span, index, outcome) for index, outcome in enumerate(schedule.outcomes) for span in outcome.spans]
    for span, index, outcome in sorted(spans, key=lambda item: item[0].start_s):
        for node, count in span.placement:
            if node not in lanes or span.end_s <= span.start_s:
                continue
            slots = [slot for slot, until in enumerate(free[node]) if until <= span.start_s + 1e-9][:count]
            for slot in slots:
                free[node][slot] = span.end_s
            bars += 1
            if bars > BARS or not slots:
                continue
            devices = sum(share for _, share in span.placement)
            tip = (
                f"{clean(outcome.job.name, 40)}: {devices} {span.device} from {seconds(span.start_s)} to {seconds(span.end_s)}"
            )
            tip += f" as {clean(span.strategy, 60)}" if span.strategy else ""
            top = 4 + lanes[node] * (tall + 3) + slots[0] * tall / len(free[node])
            left = x.share(span.start_s / scale)
            width = x.share(span.end_s / scale) - left
            plot.rect(left, top, width, tall * len(slots) / len(free[node]), f"block run-{index % COLOURS}", tip)
    notes = []
    if len(nodes) < len(per_node):
        notes.append(f"{len(nodes)} of {len(per_node)} nodes are drawn")
    if bars > BARS:
        notes.append(f"the first {BARS:,} of {bars:,} bars are drawn")
    what = f"Devices of {len(nodes)} node{'s' * (len(nodes) != 1)} over time, jobs: {len(schedule.outcomes)}"
    return plot.svg(height, what, "lanes"), "; ".join(notes)


def _drawn_nodes(schedule: ClusterSchedule) -> list[int]:
    """Return the first nodes of each type, as many of each as fit."""
    groups = schedule.fleet.groups
    each = max(ROWS // len(groups), 1)
    return [node for index in range(len(groups)) for node in _numbers(schedule, index)[:each]]


def _numbers(schedule: ClusterSchedule, group: int) -> list[int]:
    part = schedule.fleet.nodes_of(group)
    return list(range(part.start, part.stop))


def held_by_type(schedule: ClusterSchedule) -> str:
    """Draw the devices in use of each type over time, as means of equal intervals."""
    start, end = span_of(schedule)
    edges = np.linspace(start, end, POINTS + 1)
    lines = {}
    for group in schedule.fleet.groups:
        spans = [span for outcome in schedule.outcomes for span in outcome.spans if span.device == group.device]
        counts = np.array([sum(count for _, count in span.placement) for span in spans], float)
        begun, ended = np.array([span.start_s for span in spans]), np.array([span.end_s for span in spans])
        lines[f"{group.device}, of {group.devices:,}"] = mean_of(edges, begun, ended, counts)
    return over_time(edges, lines, "devices held", TRACE)


def queue(schedule: ClusterSchedule, axis: Axis = TRACE) -> str:
    """Draw the numbers of waiting and running jobs over time, as means of equal intervals."""
    start, end = span_of(schedule, axis)
    edges = np.linspace(start, end, POINTS + 1)
    arrivals = np.array([outcome.job.arrival_s for outcome in schedule.outcomes])
    ends = np.array([_departure_s(outcome, end) for outcome in schedule.outcomes])
    spans = [span for outcome in schedule.outcomes for span in outcome.spans]
    begun, ended = np.array([span.start_s for span in spans]), np.array([span.end_s for span in spans])
    present = mean_of(edges, arrivals, ends, np.ones(len(arrivals)))
    running = mean_of(edges, begun, ended, np.ones(len(spans)))
    return over_time(edges, {"waiting": np.maximum(present - running, 0), "running": running}, "jobs", axis)


def _departure_s(outcome: JobOutcome, end: float) -> float:
    if math.isnan(outcome.end_s):
        return end if outcome.removed_s is None or math.isnan(outcome.removed_s) else outcome.removed_s
    return outcome.end_s


def mean_of(edges: Array, begun: Array, ended: Array, counts: Array) -> Array:
    """Return the mean between edges of a sum over intervals, each of which counts while it lasts."""

    def passed(moments: Array) -> Array:
        """Return the integral up to each edge of steps that begin at ``moments`` and never end."""
        order = np.argsort(moments)
        sums = np.concatenate([[0.0], np.cumsum(counts[order])])
        weighted = np.concatenate([[0.0], np.cumsum((counts * moments)[order])])
        place = np.searchsorted(moments[order], edges, "right")
        return np.asarray(sums[place] * edges - weighted[place])

    return np.asarray(np.diff(passed(begun) - passed(ended)) / np.diff(edges))


def over_time(edges: Array, lines: Mapping[str, Array], what: str, axis: Axis = TRACE) -> str:
    """Draw lines over time by their labels; values are between the edges, in seconds."""
    unit, scale = time_unit(float(edges[-1] - edges[0]))
    x = Scale(float(edges[0]) / scale, float(edges[-1]) / scale)
    y = Scale(0, 1.05 * max(max(float(line.max()) for line in lines.values()), 1.0))
    plot = Plot()
    plot.text(0, 14, what, "title")
    top = plot.legend(LINE + 18, [(f"run-{n % COLOURS}", label) for n, label in enumerate(lines)])
    bottom = top + HEIGHT
    plot.y_axis([(bottom - HEIGHT * y.share(mark), tick(mark)) for mark in y.ticks(5)])
    height = plot.x_axis(bottom, bottom, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], f"{unit} after {axis.since}")
    middles = (edges[1:] + edges[:-1]) / 2 / scale
    for n, line in enumerate(lines.values()):
        points = [
            (x.share(at), bottom - HEIGHT * y.share(value)) for at, value in zip(middles.tolist(), line.tolist(), strict=True)
        ]
        plot.path(points, f"run-{n % COLOURS}")
    peaks = "; ".join(f"{label}: at most {number(float(line.max()))}" for label, line in lines.items())
    return plot.svg(height, f"{what} over time. {peaks}")


def completion_times(simulated: Mapping[str, SimulatedSchedule]) -> str:
    """Draw the share of jobs that ended within a time after their arrival, a line for each policy; the time is logarithmic."""
    times = {name: np.sort([outcome.jct_s for outcome in one.schedule.outcomes]) for name, one in simulated.items()}
    times = {name: line[np.isfinite(line)] for name, line in times.items()}
    every = np.concatenate(list(times.values()))
    if not len(every):
        return ""
    low, high = max(float(every.min()), 1.0), max(float(every.max()), 2.0)
    unit, scale = time_unit(high)
    x = Scale(low / scale, high / scale, log=True)
    plot = Plot()
    plot.text(0, 14, "share of jobs", "title")
    top = plot.legend(LINE + 18, [(f"run-{n % COLOURS}", name) for n, name in enumerate(times)])
    bottom = top + HEIGHT
    plot.y_axis([(bottom - HEIGHT * share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)])
    height = plot.x_axis(bottom, bottom, [(x.share(mark), tick(mark)) for mark in x.ticks(7)], f"{unit} from arrival to end")
    for n, line in enumerate(times.values()):
        shares = np.linspace(0, 1, min(len(line), 200))
        values = np.quantile(line, shares) if len(line) else line
        points = [
            (x.share(max(value / scale, x.low)), bottom - HEIGHT * share) for value, share in zip(values, shares, strict=True)
        ]
        plot.path(points, f"run-{n % COLOURS}")
    middles = "; ".join(f"{name}: median {seconds(float(np.median(line)))}" for name, line in times.items() if len(line))
    return plot.svg(height, f"Share of jobs against completion time. {middles}")


def comparison(pairs: Sequence[Paired]) -> str:
    """Draw each policy's mean completion time relative to the first, with its 95 % interval; left of 1 is shorter."""
    drawn = [pair for pair in pairs if pair.jobs]
    if not drawn:
        return ""
    x = Scale(0, 1.15 * max(1.0, *(pair.ratio_high for pair in drawn)))
    plot, row = Plot(), 46.0
    bottom = row * len(drawn) + 2
    marks = [(x.share(mark), tick(mark)) for mark in x.ticks(6)]
    height = plot.x_axis(bottom, 0, marks, f"mean completion time over that of {drawn[0].base}; stroke: 95 % interval")
    for n, pair in enumerate(drawn):
        y = n * row
        text = f"{number(pair.ratio)}x ({number(pair.ratio_low)}x to {number(pair.ratio_high)}x)"
        plot.text(0, y + 14, clean(pair.policy, 28))
        plot.text(1, y + 14, text, "", "end")
        plot.rect(0, y + 20, x.share(pair.ratio), 18, "network" if pair.ratio <= 1 else "codec", f"{pair.policy}: {text}")
        plot.line(x.share(pair.ratio_low), y + 29, x.share(pair.ratio_high), y + 29, "stroke")
    plot.line(x.share(1), 0, x.share(1), bottom, "asked")
    words = "; ".join(f"{pair.policy} {number(pair.ratio)}x" for pair in drawn)
    return plot.svg(height, f"Mean completion time against {drawn[0].base}: {words}", "flush")
