"""Figures of an answer: speed by number of devices, time against cost, memory, and gains of changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from paceline.reporting.figures.plot import LINE, Plot, Scale, tick
from paceline.reporting.values import clean, memory, number, seconds

PLOT_HEIGHT, DISTRIBUTION = 220.0, 140.0
"""Pixels of the area in which lines and points are drawn."""
UNFIT = "does not fit the device's memory"


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Samples/s of a number of devices, with the ends of the 80 % interval; ``fits``: True if the job fits their memory."""

    devices: int
    rate: float
    low: float
    high: float
    fits: bool = True


def scaling(lines: Mapping[str, Sequence[ScalingPoint]], asked_for: int = 0) -> str:
    """Draw speed by number of devices on logarithmic axes, a line for each kind of scaling, and the ideal from the first point.

    ``asked_for``: number of devices that the user named, which is marked.
    """
    counts = sorted({p.devices for line in lines.values() for p in line})
    first = next(iter(lines.values()))[0]
    ideal = [(n, first.rate * n / first.devices) for n in counts]
    rates = [x for line in lines.values() for p in line for x in (p.rate, p.low, p.high) if math.isfinite(x) and x > 0]
    x = Scale(counts[0], counts[-1], log=True)
    y = Scale(min(rates), max(*rates, ideal[-1][1]), log=True)
    plot = Plot()
    plot.text(0, 14, "samples/s; upright strokes: 80 % range", "title")
    items = [("ideal", "ideal"), *((f"run-{n}", label) for n, label in enumerate(lines))]
    top = plot.legend(LINE + 18, items)
    bottom = top + PLOT_HEIGHT

    def at(devices: float, rate: float) -> tuple[float, float]:
        return x.share(devices), bottom - PLOT_HEIGHT * y.share(rate)

    plot.y_axis([(at(counts[0], mark)[1], tick(mark)) for mark in y.ticks(5)])
    shown = counts[:: math.ceil(len(counts) / 9)]
    height = plot.x_axis(bottom, bottom, [(x.share(n), f"{n:,}") for n in shown], "devices")
    if asked_for in counts:
        plot.line(x.share(asked_for), top - 4, x.share(asked_for), bottom, "asked")
    plot.path([at(*point) for point in ideal], "ideal")
    for n, (label, line) in enumerate(lines.items()):
        plot.path([at(p.devices, p.rate) for p in line], f"run-{n}")
        for p in line:
            if p.low > 0 and p.high > 0:
                plot.line(*at(p.devices, p.low), *at(p.devices, p.high), f"run-{n} range")
            ends = f"{number(p.low)} to {number(p.high)}"
            tip = f"{p.devices:,} devices, {clean(label, 60)}: {number(p.rate)} samples/s ({ends})"
            tip += "" if p.fits else f"; {UNFIT}"
            plot.dot(*at(p.devices, p.rate), f"run-{n}", tip)
    ends = "; ".join(f"{label}: {number(line[-1].rate)} samples/s on {line[-1].devices}" for label, line in lines.items())
    return plot.svg(height, f"Speed against the number of devices. {ends}")


def front(points: Sequence[tuple[float, float, str]], best: int = -1) -> str:
    """Draw time (seconds) against dollars for the Pareto front; ``best``: index of the chosen strategy."""
    longest = max(p[0] for p in points)
    unit, scale = next(
        ((u, s) for u, s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)) if longest >= 2 * s), ("s", 1.0)
    )
    times, usd = [p[0] / scale for p in points], [p[1] for p in points]
    wide = min(times) > 0 and max(times) / min(times) > 20
    room = 0.06 * (max(times) - min(times)) or max(times) or 1.0
    x = Scale(min(times) / 1.1, max(times) * 1.1, log=True) if wide else Scale(max(0.0, min(times) - room), max(times) + room)
    y = Scale(0, 1.1 * max(usd) or 1.0)
    plot = Plot()
    plot.text(0, 14, "dollars", "title")
    top = plot.legend(LINE + 18, [("chosen", "chosen")]) if best >= 0 else LINE + 6
    bottom = top + PLOT_HEIGHT

    def at(time: float, money: float) -> tuple[float, float]:
        return x.share(time), bottom - PLOT_HEIGHT * y.share(money)

    plot.y_axis([(at(0, mark)[1], tick(mark)) for mark in y.ticks(5)])
    height = plot.x_axis(bottom, bottom, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], unit)
    ordered = sorted(zip(times, usd, strict=True))
    corners = [p for (a, b), (c, d) in pairwise(ordered) for p in (at(a, b), at(c, b), at(c, d))]
    plot.path(corners, "ideal")
    for n, (time, money, title) in enumerate(points):
        tip = f"{clean(title)}: {seconds(time)}, ${money:,.2f}"
        kind, radius = ("chosen", 7) if n == best else ("run-0", 5)
        plot.dot(*at(time / scale, money), kind, tip, radius)
    points_text = "; ".join(f"{seconds(t)} for ${m:,.2f}" for t, m, _ in points)
    return plot.svg(height, f"Time against money of the strategies that no other beats: {points_text}")


def gains(bars: Sequence[tuple[str, float, float, float]]) -> str:
    """Draw the speedup of each change (title, ratio, low, high) as bars with ranges; 1 is the base."""
    x = Scale(0, 1.3 * max(1.0, *(ratio for _, ratio, *_ in bars)))  # a range may be far wider: its numbers say so
    plot, row = Plot(), 46.0
    bottom = row * len(bars) + 2
    height = plot.x_axis(
        bottom, 0, [(x.share(mark), tick(mark)) for mark in x.ticks(6)], "samples/s over those of today; stroke: 80 % range"
    )
    for n, (title, ratio, low, high) in enumerate(bars):
        y = n * row
        tip = f"{clean(title)}: {number(ratio)}x, {number(low)}x to {number(high)}x"
        plot.text(0, y + 14, clean(title, 28))
        plot.text(1, y + 14, f"{number(ratio)}x ({number(low)}x to {number(high)}x)", "", "end")
        plot.rect(0, y + 20, x.share(ratio), 18, "network" if ratio >= 1 else "codec", tip)
        plot.line(x.share(low), y + 29, x.share(high), y + 29, "stroke")
    plot.line(x.share(1), 0, x.share(1), bottom, "asked")
    gains_text = "; ".join(f"{title} {number(ratio)}x" for title, ratio, *_ in bars)
    return plot.svg(height, f"Speed-up of each change: {gains_text}", "flush")


def memory_bar(groups: Mapping[str, float], available: float) -> str:
    """Draw the memory use of a device by purpose (bytes) as one bar, and its capacity as a line."""
    whole = sum(groups.values())
    x = Scale(0, 1.04 * max(whole, available))
    gib = 2.0**30
    plot, start = Plot(), 0.0
    kinds = {name: f"block run-{n}" for n, name in enumerate(groups) if groups[name] > 0}
    for name, kind in kinds.items():
        size = groups[name]
        tip = f"{name}: {memory(size)}, {size / available:.0%} of the device"
        plot.rect(x.share(start), 26, x.share(start + size) - x.share(start), 34, kind, tip)
        plot.fitting(x.share(start + size / 2), 47, x.share(size), name, "middle")
        start += size
    plot.line(x.share(available), 18, x.share(available), 66, "limit" if whole > available else "stroke")
    plot.text(x.share(available), 13, f"a device has {memory(available)}", "axis", "end")
    marks = [(x.share(mark * gib), tick(mark)) for mark in Scale(0, x.high / gib).ticks(6)]
    height = plot.x_axis(68, 62, marks, "GiB")
    for name, kind in kinds.items():
        plot.key(height, kind, f"{name}: {memory(groups[name])}")
        height += LINE
    return plot.svg(height + 4, f"Memory of a device: {memory(whole)} of {memory(available)}", "flush")


def shares(distribution: Sequence[float], label: str) -> str:
    """Draw a distribution over whole numbers from 0 up as bars."""
    count, y = len(distribution), Scale(0, 1.05 * max(distribution))
    plot, bottom = Plot(), LINE + 146
    plot.text(0, 14, "share of the updates", "title")
    plot.y_axis(
        [(bottom - DISTRIBUTION * y.share(mark), f"{mark:.0%}" if y.high > 0.05 else f"{mark:.1%}") for mark in y.ticks(4)]
    )
    shown = range(0, count, math.ceil(count / 8))
    height = plot.x_axis(bottom, bottom, [((k + 0.5) / count, f"{k}") for k in shown], label)
    for k, share in enumerate(distribution):
        tall = DISTRIBUTION * y.share(share)
        plot.rect((k + 0.1) / count, bottom - tall, 0.8 / count, tall, "network", f"{k}: {share:.1%}")
    shares_text = "; ".join(f"{k}: {share:.1%}" for k, share in enumerate(distribution) if share >= 0.001)
    return plot.svg(height, f"Share of the updates by {label}: {shares_text}")
