"""The pictures of an answer: speed against devices with the ideal line, time against money, what changes gain, staleness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.reporting.report_figures import DASHES, PALETTE, canvas, to_svg
from paceline.reporting.values import clean, number, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """Samples/s of a number of devices, with the ends of its 80 % interval."""

    devices: int
    rate: float
    low: float
    high: float


def scaling(lines: Mapping[str, Sequence[ScalingPoint]], name: str, asked_for: int = 0) -> str:
    """Speed against devices, both logarithmic, a line for each kind of scaling, and the ideal from the first point.

    ``asked_for``: devices that the user named; the picture marks them.
    """
    counts = sorted({p.devices for line in lines.values() for p in line})
    with canvas(9.8, 3.6) as figure:
        axes = figure.add_subplot()
        first = next(iter(lines.values()))[0]
        ideal = [first.rate * n / first.devices for n in counts]
        axes.plot(counts, ideal, color=PALETTE["muted"], linestyle=(0, (2, 2)), linewidth=1.2, label="ideal")
        for n, (label, line) in enumerate(lines.items()):
            xs, colour = [p.devices for p in line], PALETTE[f"run-{n}"]
            axes.fill_between(xs, [p.low for p in line], [p.high for p in line], color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                xs,
                [p.rate for p in line],
                color=colour,
                linestyle=DASHES[n],
                linewidth=1.8,
                label=label,
                marker="o",
                markersize=3.5,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        _plain_ticks(axes, counts)
        if asked_for in counts:
            axes.axvline(asked_for, color=PALETTE["rule"], linewidth=1.2, zorder=0)
        axes.set_xlabel("devices")
        axes.set_title("samples/s; shaded: 80 % range")
        axes.legend(handlelength=3)
        ends = "; ".join(f"{label}: {number(line[-1].rate)} samples/s on {line[-1].devices}" for label, line in lines.items())
        return to_svg(figure, name, f"Speed against the number of devices. {ends}")


def front(points: Sequence[tuple[float, float, str]], name: str, best: int = -1) -> str:
    """Time (seconds) against dollars of the strategies that no other beats in both; ``best``: index of the one chosen."""
    hours = [p[0] / 3600 for p in points]
    usd = [p[1] for p in points]
    tips = {f"{name}-{n}": f"{clean(title)}: {seconds(time)}, ${money:,.2f}" for n, (time, money, title) in enumerate(points)}
    with canvas(9.8, 3.6) as figure:
        axes = figure.add_subplot()
        axes.plot(hours, usd, color=PALETTE["muted"], linewidth=1.2, drawstyle="steps-post")
        for n, (x, y) in enumerate(zip(hours, usd, strict=True)):
            chosen = n == best
            axes.plot(
                [x],
                [y],
                gid=f"{name}-{n}",
                marker="D" if chosen else "o",
                markersize=8 if chosen else 5,
                color=PALETTE["run-1" if chosen else "run-0"],
                linestyle="none",
                label="chosen" if chosen else None,
            )
        axes.grid()
        if min(hours) > 0 and max(hours) / min(hours) > 20:
            axes.set_xscale("log")
        axes.set_ylim(0, 1.12 * max(usd))
        axes.set_xlabel("hours")
        axes.set_title("dollars")
        axes.tick_params(length=0)
        if best >= 0:
            axes.legend()
        points_text = "; ".join(f"{seconds(t)} for ${m:,.2f}" for t, m, _ in points)
        return to_svg(figure, name, f"Time against money of the strategies that no other beats: {points_text}", tips)


def gains(bars: Sequence[tuple[str, float, float, float]], name: str) -> str:
    """Speed-up of each change (title, ratio, low, high) as bars with their ranges; 1 is the base."""
    with canvas(9.8, 0.9 + 0.42 * len(bars)) as figure:
        axes = figure.add_subplot()
        for n, (_, ratio, low, high) in enumerate(bars):
            axes.barh(n, ratio, height=0.6, color=PALETTE["network-soft"], edgecolor=PALETTE["network"], linewidth=0.8)
            axes.plot([low, high], [n, n], color=PALETTE["ink"], linewidth=1.4)
            axes.annotate(f"{number(ratio)}x", (high, n), xytext=(5, 0), textcoords="offset points", va="center_baseline")
        axes.axvline(1, color=PALETTE["muted"], linewidth=1.2, linestyle=(0, (3, 2)))
        axes.set_yticks(range(len(bars)), [clean(title, 40) for title, *_ in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, max(high for *_, high in bars) * 1.12)
        axes.set_xlabel("samples/s over those of today; the line is the 80 % range")
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        gains_text = "; ".join(f"{title} {number(ratio)}x" for title, ratio, *_ in bars)
        return to_svg(figure, name, f"Speed-up of each change: {gains_text}")


def shares(distribution: Sequence[float], name: str, label: str) -> str:
    """A distribution over whole numbers from 0 up as bars."""
    with canvas(9.8, 2.8) as figure:
        axes = figure.add_subplot()
        axes.bar(
            range(len(distribution)),
            distribution,
            width=0.8,
            color=PALETTE["network-soft"],
            edgecolor=PALETTE["network"],
            linewidth=0.8,
        )
        axes.set_xlabel(label)
        axes.set_title("share of the updates")
        axes.set_xlim(-0.6, len(distribution) - 0.4)
        _whole_ticks(axes)
        axes.tick_params(length=0)
        shares_text = "; ".join(f"{k}: {share:.1%}" for k, share in enumerate(distribution) if share >= 0.001)
        return to_svg(figure, name, f"Share of the updates by {label}: {shares_text}")


def _whole_ticks(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True))


def _plain_ticks(axes: Axes, counts: Sequence[int]) -> None:
    """Devices as whole numbers, at most nine of them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    shown = counts[:: max(1, math.ceil(len(counts) / 9))]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    plain: Any = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid()
    axes.tick_params(which="both", length=0)
