"""Figures of a layout: stages over time, memory of each stage and of the device, and the mesh on the nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from paceline.planning.compare.layout_view import DevicePlace, LayoutView, Pass
from paceline.reporting.figures.report_figures import PALETTE, canvas, to_svg
from paceline.reporting.figures.timeline import unit_of
from paceline.reporting.values import memory, seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PASSES = 900
"""Passes that are drawn: of a longer step its beginning and its end."""
NUMBERED = 220
"""Passes up to which each shows its micro batch."""
NODES = 16
"""Nodes that are drawn."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "frozen weights", "unpacked weights", "gathered"),
    "gradients": ("gradients", "buckets", "unused gradients", "error feedback", "codec buffers"),
    "optimizer state": ("optimizer state",),
    "activations": ("activations", "inputs"),
}
"""Purposes of memory that are drawn as one; the rest is ``other``."""
KINDS = {"forward": "network", "backward": "compute", "weights": "codec"}
"""Passes by kind, with the lane whose colours they have; ``weights`` are those of a zero-bubble pipeline."""
_HATCHES = ("", "//", "..", "xx", "--")


def windows(view: LayoutView, most: int = MOST_PASSES) -> list[tuple[float, float]]:
    """Return the spans of the step to draw, in seconds: all of it, or its beginning and its end."""
    end = max(own[-1].end_s for own in view.passes)
    count = sum(map(len, view.passes))
    if count <= most:
        return [(0.0, end)]
    span = end * most / count / 2
    return [(0.0, span), (end - span, end)]


def pipeline_chart(view: LayoutView, name: str) -> str:
    """Draw the stages over time, one below the other: forward and backward passes, and idle times."""
    spans, stages = windows(view), len(view.passes)
    scale, unit = unit_of(spans[-1][1])
    with canvas(9.8, 1.1 + min(0.3, 9 / stages) * stages) as figure:
        panels = figure.subplots(1, len(spans), sharey=True, squeeze=False)[0]
        shown = sum(p.end_s > a and p.start_s < b for own in view.passes for p in own for a, b in spans)
        for axes, (begin, end) in zip(panels, spans, strict=True):
            for stage, own in enumerate(view.passes):
                _stage(axes, stage, [p for p in own if p.end_s > begin and p.start_s < end], scale, shown <= NUMBERED)
            axes.set_xlim(begin / scale, end / scale)
            axes.set_ylim(stages - 0.4, -0.6)
            axes.set_yticks(range(0, stages, max(1, stages // 16)))
            axes.set_xlabel(f"time from the start of the step, {unit}")
            axes.tick_params(length=0)
            axes.spines["left"].set_visible(False)
        panels[0].set_title("stages")
        if len(panels) > 1:
            panels[1].set_title("and the end of the step")
        _legend(panels[-1], {_kind(p) for own in view.passes for p in own})
        label = f"{stages} stages over time; they are idle {view.idle:.1%} of it"
        return to_svg(figure, name, label)


def _stage(axes: Axes, stage: int, passes: Sequence[Pass], scale: float, numbered: bool) -> None:
    """Draw one row: the passes of a stage over its idle time."""
    axes.axhspan(stage - 0.4, stage + 0.4, color=PALETTE["other-soft"], linewidth=0)
    for kind, lane in KINDS.items():
        own = [p for p in passes if _kind(p) == kind]
        bars = [(p.start_s / scale, (p.end_s - p.start_s) / scale) for p in own]
        soft, line = PALETTE[f"{lane}-soft"], PALETTE[lane]
        axes.broken_barh(bars, (stage - 0.4, 0.8), facecolors=soft, edgecolors=line, linewidth=0.5)
        for p in own if numbered else ():
            middle = (p.start_s + p.end_s) / 2 / scale
            axes.text(middle, stage, str(p.micro_batch + 1), ha="center", va="center_baseline", fontsize=6.5, clip_on=True)


def _kind(p: Pass) -> str:
    return "weights" if p.weights else "backward" if p.backward else "forward"


def _legend(axes: Axes, drawn: Collection[str]) -> None:
    from matplotlib.patches import Patch

    kinds = {kind: lane for kind, lane in KINDS.items() if kind in drawn} | {"idle": "other"}
    patches = [Patch(facecolor=PALETTE[f"{lane}-soft"], edgecolor=PALETTE[lane], label=kind) for kind, lane in kinds.items()]
    axes.legend(handles=patches, loc="upper right", bbox_to_anchor=(1, 1.0), ncols=len(patches), borderaxespad=-1.6)


def grouped(sizes: Mapping[str, float]) -> dict[str, float]:
    """Sum bytes by the groups that are drawn."""
    groups = {name: sum(sizes.get(part, 0.0) for part in parts) for name, parts in GROUPS.items()}
    return {**groups, "other": sum(sizes.values()) - sum(groups.values())}


def memory_of_stages(view: LayoutView, name: str) -> str:
    """Draw stacked bars of each stage's memory, and the device's capacity as a line."""
    stages = [grouped(sizes) for sizes in view.stage_memory]
    gib = 2.0**30
    with canvas(9.8, 3.4) as figure:
        axes = figure.add_subplot()
        below = [0.0] * len(stages)
        for number, group in enumerate(stages[0]):
            heights = [sizes[group] / gib for sizes in stages]
            colour = PALETTE[f"run-{number}"]
            axes.bar(
                range(len(stages)),
                heights,
                bottom=below,
                width=0.75,
                facecolor=colour,
                alpha=0.55,
                edgecolor=colour,
                hatch=_HATCHES[number],
                label=group,
            )
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.axhline(view.available / gib, color=PALETTE["ink"], linewidth=1.4, linestyle=(0, (3, 2)))
        axes.annotate("a device has", (len(stages) - 0.5, view.available / gib), ha="right", va="bottom", fontsize=8)
        axes.set_ylim(0, 1.15 * max(*below, view.available / gib))
        axes.set_xlim(-0.6, len(stages) - 0.4)
        axes.set_xticks(range(0, len(stages), max(1, len(stages) // 16)))
        axes.set_xlabel("stage")
        axes.set_title("GiB on a device of each stage")
        axes.tick_params(length=0)
        axes.legend(ncols=5, loc="upper left", fontsize=8)
        fullest = max(range(len(stages)), key=lambda stage: sum(stages[stage].values()))
        most = sum(view.stage_memory[fullest].values())
        label = f"Memory of each stage; stage {fullest} needs most, {memory(most)} of {memory(view.available)}"
        return to_svg(figure, name, label)


def nodes_of_replica(view: LayoutView, most: int = NODES) -> list[int]:
    """Return at most ``most`` nodes of replica 0, the first ones."""
    ends = list(accumulate(view.nodes))
    return list(dict.fromkeys(bisect_right(ends, place.rank) for place in view.first_replica()))[:most]


def mesh_on_nodes(view: LayoutView, name: str) -> str:
    """Draw the devices of the nodes of replica 0, coloured by stage; devices of other replicas are grey."""
    nodes, local = nodes_of_replica(view), max(view.nodes)
    with canvas(9.8, 0.8 + 0.36 * len(nodes)) as figure:
        axes = figure.add_subplot()
        for row, node in enumerate(nodes):
            for column, rank in enumerate(view.node(node)):
                _device(axes, view.place(rank), row, column)
        axes.set_xlim(-0.55, local - 0.45)
        axes.set_ylim(len(nodes) - 0.4, -0.6)
        axes.set_yticks(range(len(nodes)), [f"node {node}" for node in nodes])
        axes.set_xticks([])
        axes.set_title("stage s, context c, tensor t of replica 0; grey: other replicas")
        axes.tick_params(length=0)
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        mesh = view.mesh
        sizes = ", ".join(f"{dimension} {size}" for dimension, size in mesh.mesh.items() if size > 1)
        return to_svg(figure, name, f"The mesh on the nodes: {sizes}; a replica has {mesh.model_devices} devices")


def _device(axes: Axes, place: DevicePlace, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    own = place.replica == 0
    colour = PALETTE[f"run-{place.stage % 6}"] if own else PALETTE["other"]
    axes.add_patch(Rectangle((column - 0.46, row - 0.4), 0.92, 0.8, facecolor=colour, alpha=0.35 if own else 0.12, linewidth=0))
    text = f"s{place.stage} c{place.context} t{place.tensor}" if own else f"replica {place.replica}"
    axes.text(column, row, text, ha="center", va="center_baseline", fontsize=7.5 if own else 6.5)


def sentence(view: LayoutView) -> str:
    """Describe the chart in words."""
    mesh = view.mesh
    end = max(own[-1].end_s for own in view.passes)
    several = f" of {mesh.virtual_stages} parts each" if mesh.virtual_stages > 1 else ""
    count = f"{mesh.micro_batches} micro batches" if mesh.micro_batches > 1 else "one micro batch"
    drawn = "" if len(windows(view)) == 1 else " Drawn are its beginning and its end."
    return (
        f"{mesh.pipeline} {'stages' if mesh.pipeline > 1 else 'stage'}{several}, {count}: the passes take {seconds(end)} of "
        f"{seconds(view.seconds)}, and stages are idle {view.idle:.1%} of that time.{drawn}"
    )
