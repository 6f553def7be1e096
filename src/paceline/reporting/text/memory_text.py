"""Screen of a step's memory over time: a chart of stacked areas, the peak and its parts, and other stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paceline.array_types import Array
from paceline.memory_timeline import COMMUNICATORS, CONTEXT, FRAGMENTS, MARGIN, POOLS, MemoryTimeline, fullest
from paceline.record import Metrics
from paceline.reporting.figures.plot import Scale, tick
from paceline.reporting.figures.timeline import unit_of
from paceline.reporting.text.screen import (
    GAP,
    Bar,
    Block,
    Drawing,
    Line,
    Pair,
    Paragraph,
    Screen,
    Style,
    Table,
    heading,
    item,
    wrap,
)
from paceline.reporting.text.table import run_title
from paceline.reporting.values import clean, memory, percent, seconds

MARKS: Mapping[str, tuple[str, Style]] = {
    "weights": ("W", ""),
    "frozen weights": ("F", ""),
    "gradients": ("G", ""),
    "optimizer state": ("O", ""),
    "buckets": ("B", ""),
    "gathered": ("g", "wait"),
    "activations": ("#", "work"),
    "inputs": ("i", ""),
    "update": ("u", "warning"),
    MARGIN: (":", "faint"),
    CONTEXT: (".", "faint"),
    COMMUNICATORS: ("c", "faint"),
    POOLS: ("s", "faint"),
    FRAGMENTS: ("+", "faint"),
}
"""Characters of the purposes in the chart. Others get those of ``_OTHERS``."""
_OTHERS = "xyzvwqkmnp"
ROWS = 14
"""Lines of the chart."""
LARGEST = 5
"""Kinds of tensors that are listed at the peak."""
GIB = 2.0**30
STAGES = 4
"""Stages that are listed without ``--why``: the fullest."""
_PASSES = {
    "forward": "f",
    "backward": "b",
    "optimizer": "o",
    "generate": "g",
    "old policy": "p",
    "reference": "r",
    "reward": "w",
}
DOUBTS = ("fit", "coverage")
"""Kinds of assumptions that would change the answer."""
SUBJECTS = ("memory", "recomputation", "parallelism")
"""Kinds of assumptions that the memory rests on."""


def memory_screen(p: Metrics, timelines: Sequence[MemoryTimeline], shown: MemoryTimeline) -> Screen:
    """Return the screen of a prediction's memory over time. ``shown``: the timeline in the chart."""
    has, peak = memory(shown.available), memory(shown.peak_bytes)
    name = _most(shown)
    every: list[Block] = [GAP, _stages(timelines)] if len(timelines) > STAGES else []
    about = [a for a in p.assumptions if getattr(a, "kind", "") in SUBJECTS]
    return Screen(
        title=f"{run_title(p)}, memory of a step",
        answer=tuple(_answer(p, timelines, shown)),
        brief=f"{run_title(p)}: {peak} of {has} a device at the peak, {peak_text(shown)}, most of it {name}",
        why=(heading("It rests on:"), *map(item, [*about, *sentences(shown)]), *every),
        why_holds=f"the places of the tensors in time, {'every stage, ' if every else ''}and assumptions about memory",
        alarm=getattr(p, "headline", ""),
    )


def peak_text(timeline: MemoryTimeline) -> str:
    """Say when memory is fullest: ``in the backward pass, 285 ms after the start of 915 ms``."""
    when = {"optimizer": "in the update"}.get(timeline.peak_pass, f"in the {timeline.peak_pass} pass")
    return f"{when}, at {seconds(timeline.peak_s)} of {seconds(timeline.step_s)}"


def _most(timeline: MemoryTimeline) -> str:
    return max(timeline.at_peak, key=lambda name: timeline.at_peak[name])


def _answer(p: Metrics, timelines: Sequence[MemoryTimeline], shown: MemoryTimeline) -> Iterator[Block]:
    low, high = shown.span
    around = f" ({memory(low)} to {memory(high)})" if high > low else ""
    style: Style = "" if getattr(p, "fit", "fits") == "fits" else "bad"
    yield Pair("peak", f"{memory(shown.peak_bytes)}{around} of {memory(shown.available)} a device", style)
    yield Pair("when", peak_text(shown))
    if len(timelines) > 1:
        yield Pair("shown", shown.title + (", the fullest" if shown is fullest(timelines) else ""))
    yield GAP
    yield Drawing(lambda width: chart(shown, width))
    yield GAP
    yield heading("At the peak:")
    marks = marks_of(shown)
    for name, size in shown.at_peak.items():
        mark, colour = marks[name]
        yield Bar(name, size / shown.peak_bytes, (memory(size), percent(size / shown.peak_bytes)), mark, style=colour)
    yield GAP
    rows = [
        (clean(name, 60) if number == 1 else f"{clean(name, 60)}, {number:,} times", purpose, memory(size))
        for purpose, name, number, size in shown.largest_at_peak(LARGEST)
    ]
    yield Table(("largest tensors then", "purpose", "size"), rows, frozenset({0, 1}))
    if len(timelines) > 1:
        yield GAP
        listed = sorted(timelines, key=lambda t: -t.peak_bytes)[:STAGES]
        yield _stages(sorted(listed, key=timelines.index))
        if others := [t for t in timelines if t not in listed]:
            most = memory(fullest(others).peak_bytes)
            yield Paragraph(f"{len(others)} more of {len(timelines)} stages, up to {most}", "faint")
    for assumption in p.assumptions:
        if getattr(assumption, "kind", "") in DOUBTS:
            yield GAP
            yield Paragraph(assumption, "warning")


def _stages(timelines: Sequence[MemoryTimeline]) -> Table:
    return Table(("stage", "ranks", "peak", "when", "most of it"), [_row(t) for t in timelines], frozenset({1, 3, 4}))


def _row(t: MemoryTimeline) -> Sequence[str]:
    return str(t.stage + 1), t.ranks_text, memory(t.peak_bytes), f"{t.peak_pass}, {seconds(t.peak_s)}", _most(t)


def sentences(t: MemoryTimeline) -> Iterator[str]:
    """Yield sentences on what the chart shows and how."""
    yield (
        "A layer's tensors are there from its forward pass to the end of its backward pass. Gradients and optimizer state are "
        "there all the time. The peak is the predicted memory of these ranks."
    )
    if t.margin:
        yield (
            f"Margin: the prediction adds {memory(t.margin)} for parts that it counts together and that the passes need at "
            "different times."
        )
    if t.memory.get(CONTEXT):
        yield (
            f"Context and communicators: {memory(t.memory[CONTEXT] + t.memory.get(COMMUNICATORS, 0.0))} outside PyTorch's "
            "allocator, for the runtime with its kernels and for NCCL's buffers."
        )


def marks_of(timeline: MemoryTimeline) -> dict[str, tuple[str, Style]]:
    """Return character and style of each purpose, in the order of the stack."""
    names = dict.fromkeys([*timeline.curve.purposes, MARGIN, *timeline.beyond])
    others = iter(_OTHERS * 9)
    marks: dict[str, tuple[str, Style]] = {name: MARKS.get(name) or (next(others), "") for name in names}
    return marks


def chart(timeline: MemoryTimeline, width: int) -> Iterator[Line]:
    """Yield the lines of the chart: areas stacked over time, the device's memory as a line, and the passes below."""
    top = max(timeline.available, timeline.peak_bytes)
    scale = Scale(0.0, 1.04 * top / GIB)
    label = max(len(tick(mark)) for mark in scale.ticks(5)) + 1
    columns = max(16, width - label - 2)
    stacks, marks = stacked(timeline, columns), list(marks_of(timeline).values())
    step = scale.high * GIB / ROWS
    limit = min(ROWS - 1, int(timeline.available / step))
    ticks = {min(ROWS - 1, int(mark * GIB / step)): tick(mark) for mark in scale.ticks(5)}
    yield ((f"{'GiB':>{label}}", "faint"),)
    for row in reversed(range(ROWS)):
        middle = (row + 0.5) * step
        places = [int(np.searchsorted(stack, middle, "right")) for stack in stacks]
        empty: tuple[str, Style] = ("-" if row == limit else " ", "faint")
        cells = [marks[place] if place < len(marks) else empty for place in places]
        if row == limit and timeline.peak_bytes > timeline.available:
            cells = [("-", "bad") if column % 2 else cell for column, cell in enumerate(cells)]
        yield ((f"{ticks.get(row, ''):>{label}} |", "faint"), *_spans(cells))
    yield ((f"{'':>{label}} +{'-' * columns}", "faint"),)
    yield ((" " * (label + 2), ""), (pass_line(timeline, columns), "faint"))
    unit_s, unit = unit_of(timeline.step_s)
    end = f"{timeline.step_s / unit_s:.3g} {unit}"
    yield ((f"{'':>{label}}  0{end:>{columns - 1}}", "faint"),)
    used = [name for name in _PASSES if any(p.name == name for p in timeline.passes)]
    words = ", ".join(f"{_PASSES[name]} {name}" for name in used)
    indent = " " * (label + 2)
    text = f"{words}; -: {memory(timeline.available)}, a device's memory"
    yield from (((line, "faint"),) for line in wrap(text, width, indent, indent))


def _spans(cells: Sequence[tuple[str, Style]]) -> Iterator[tuple[str, Style]]:
    """Yield neighbouring characters of one style together."""
    text, style = "", cells[0][1]
    for mark, own in cells:
        if own != style:
            yield text, style
            text, style = "", own
        text += mark
    yield text, style


def stacked(timeline: MemoryTimeline, columns: int) -> Array:
    """Return the upper ends of the areas in each of ``columns`` intervals, (columns, purposes, then what is beyond them)."""
    sizes = timeline.curve.sampled(columns, timeline.step_s).sizes
    beyond = np.tile([timeline.margin, *timeline.beyond.values()], (len(sizes), 1))
    return np.asarray(np.cumsum(np.concatenate([sizes, beyond], axis=1), axis=1))


def pass_line(timeline: MemoryTimeline, columns: int) -> str:
    """Return one letter for each interval: that of the pass that runs longest in it, or a space."""
    best, letters = [0.0] * columns, [" "] * columns
    for bar in timeline.passes:
        first = min(columns - 1, int(bar.start_s / timeline.step_s * columns)) if timeline.step_s else 0
        last = min(columns - 1, int(bar.end_s / timeline.step_s * columns)) if timeline.step_s else 0
        for column in range(first, last + 1):
            begin, stop = (edge * timeline.step_s / columns for edge in (column, column + 1))
            shared = min(stop, bar.end_s) - max(begin, bar.start_s)
            if shared > best[column]:
                best[column], letters[column] = shared, _PASSES.get(bar.name, "?")
    return "".join(letters)
