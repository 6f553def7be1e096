"""Figures of a step's memory over time: areas of each purpose stacked, the passes below, and a small one for each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.memory_timeline import BEYOND, COMMUNICATORS, CONTEXT, FRAGMENTS, MARGIN, POOLS, MemoryTimeline
from paceline.reporting.figures.report_figures import PALETTE, canvas, check_format, light, save, to_svg
from paceline.reporting.figures.timeline import unit_of
from paceline.reporting.values import clean, memory, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Mapping[str, str] = {
    "weights": "run-0",
    "gradients": "run-1",
    "optimizer state": "run-2",
    "activations": "run-3",
    "gathered": "run-5",
    "update": "run-4",
}
"""Colours of the purposes, by name in the palette; others follow ``_FURTHER`` in turn."""
_FURTHER = ("other", "codec-soft", "network-soft", "compute-soft")
_HATCHES = {MARGIN: "....", CONTEXT: "////", COMMUNICATORS: "xxxx", POOLS: "..", FRAGMENTS: "oo"}
_PASSES = {"forward": "compute", "backward": "codec", "optimizer": "network"}
_OTHER_PASSES = ("run-3", "run-4", "run-5", "other")
POINTS, FEW = 480, 120
"""Times that the figure and each small figure show, each the fullest moment of its interval."""
FILLED = 0.3
"""Share of a device from which the figure shows all of its memory."""
SEEN = 0.003
"""Share of the peak from which a purpose is in the legend."""
STAGES = 8
"""Stages that have a small figure: the ends, and some between them at equal distances."""
GIB = 2.0**30


def memory_svg(timelines: Sequence[MemoryTimeline], shown: MemoryTimeline, name: str) -> str:
    """Draw the memory over time for a page."""
    with canvas(9.8, _height(timelines)) as figure:
        _draw(figure, timelines, shown, "", PALETTE)
        most = f"{memory(shown.peak_bytes)} of {memory(shown.available)} at {seconds(shown.peak_s)}"
        return to_svg(figure, name, f"Memory of {shown.title} over a step; the peak is {most}")


def write_picture(timelines: Sequence[MemoryTimeline], shown: MemoryTimeline, title: str, where: str) -> Path:
    """Write the memory over time as an SVG or PNG file. Raises UserError."""
    path = Path(where)
    check_format(path)
    with canvas(9.8, _height(timelines) + 0.3, light()) as figure:
        _draw(figure, timelines, shown, title, light())
        save(figure, path)
    return path


def _height(timelines: Sequence[MemoryTimeline]) -> float:
    return 4.6 + 1.5 * -(-len(_drawn_stages(timelines)) // 4)


def _drawn_stages(timelines: Sequence[MemoryTimeline]) -> Sequence[MemoryTimeline]:
    """Return the timelines that have a small figure; none without stages."""
    count = len(timelines)
    if count < 2:
        return ()
    chosen = sorted({round(k * (count - 1) / (STAGES - 1)) for k in range(STAGES)}) if count > STAGES else range(count)
    return [timelines[number] for number in chosen]


def _draw(
    figure: Figure, timelines: Sequence[MemoryTimeline], shown: MemoryTimeline, title: str, palette: Mapping[str, str]
) -> None:
    small = _drawn_stages(timelines)
    rows = -(-len(small) // 4)
    grid = figure.add_gridspec(2 + rows, 4, height_ratios=[9, 0.45, *[2.8] * rows])
    axes = figure.add_subplot(grid[0, :])
    _areas(axes, shown, palette, named=True)
    _peak(axes, shown, palette)
    used = max(shown.span[1], *(t.peak_bytes for t in timelines))
    top = 1.08 * (max(used, shown.available) if used > FILLED * shown.available else used) / GIB
    axes.set_ylim(0, top)
    axes.set_title(f"{clean(title, 110)}\n{_caption(shown)}" if title else _caption(shown))
    axes.set_ylabel("GiB")
    axes.tick_params(labelbottom=False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True, handlelength=1.2)
    _pass_strip(figure.add_subplot(grid[1, :], sharex=axes), shown, palette)
    for number, timeline in enumerate(small):
        panel = figure.add_subplot(grid[2 + number // 4, number % 4])
        _areas(panel, timeline, palette, named=False)
        panel.set_ylim(0, top)
        panel.set_title(f"stage {timeline.stage + 1}: {memory(timeline.peak_bytes)}", fontsize=8, fontweight="normal")
        panel.tick_params(labelbottom=False, labelsize=7)


def _caption(t: MemoryTimeline) -> str:
    around = f"{memory(t.span[0])} to {memory(t.span[1])}"
    return f"{t.title}: {memory(t.peak_bytes)} of {memory(t.available)} at the peak ({around})"


def _areas(axes: Axes, t: MemoryTimeline, palette: Mapping[str, str], *, named: bool) -> None:
    """Draw the stacked areas, what no tensor holds on top, and the device's memory as a line."""
    scale = unit_of(t.step_s)[0]
    curve = t.curve.sampled(POINTS if named else FEW, t.step_s)
    times = np.append(curve.times, t.step_s) / scale
    below = np.zeros(len(times))
    at_peak, further = t.at_peak, cycle(_FURTHER)
    for name in [*curve.purposes, MARGIN, *BEYOND]:
        if name not in at_peak and not (name in curve.purposes and curve.sizes[:, curve.purposes.index(name)].any()):
            continue
        if name in curve.purposes:
            own = curve.sizes[:, curve.purposes.index(name)]
            sizes = np.append(own, own[-1:]) / GIB
        else:
            sizes = np.full(len(times), at_peak[name] / GIB)
        beyond = name in _HATCHES
        colour = palette["other" if beyond else COLOURS.get(name) or next(further)]
        size = at_peak.get(name, 0.0)
        seen = named and (sizes.max() * GIB > SEEN * t.peak_bytes)
        label = "_" if not seen else f"{name}, {memory(size)}" if size else name
        style: dict[str, Any] = {"facecolor": colour, "alpha": 0.6, "linewidth": 0}
        if beyond:
            style |= {"facecolor": palette["other-soft"], "alpha": 1, "edgecolor": colour, "hatch": _HATCHES[name]}
        axes.fill_between(times, below, below + sizes, step="post", label=label, **style)
        below = below + sizes
    axes.axhline(t.available / GIB, color=palette["ink"], linewidth=1.2, linestyle=(0, (3, 2)))
    if named:
        axes.annotate(
            f"a device has {memory(t.available)}", (times[-1], t.available / GIB), ha="right", va="bottom", fontsize=8
        )
    axes.set_xlim(0, times[-1] or 1.0)
    axes.grid(axis="y")
    axes.tick_params(length=0)


def _peak(axes: Axes, t: MemoryTimeline, palette: Mapping[str, str]) -> None:
    """Mark the peak, with its range as a stroke."""
    at, low, peak, high = t.peak_s / unit_of(t.step_s)[0], t.span[0] / GIB, t.peak_bytes / GIB, t.span[1] / GIB
    axes.errorbar([at], [peak], [[max(0.0, peak - low)], [max(0.0, high - peak)]], color=palette["ink"], capsize=3, linewidth=1)
    axes.plot([at], [peak], "o", color=palette["ink"], markersize=4)


def _pass_strip(axes: Axes, t: MemoryTimeline, palette: Mapping[str, str]) -> None:
    """Draw the passes as a strip below the areas, with the axis of time."""
    scale, unit = unit_of(t.step_s)
    others = cycle(_OTHER_PASSES)
    names = dict.fromkeys([*_PASSES, *(p.name for p in t.passes)])
    lanes = {name: _PASSES.get(name) or next(others) for name in names}
    for name, lane in lanes.items():
        bars = [(p.start_s / scale, (p.end_s - p.start_s) / scale) for p in t.passes if p.name == name]
        if not bars:
            continue
        axes.broken_barh(bars, (0, 1), facecolors=palette[lane], alpha=0.75, linewidth=0, label=name)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel(f"time from the start of the step, {unit}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.0), fontsize=8, handlelength=1.2, borderaxespad=0.6)
