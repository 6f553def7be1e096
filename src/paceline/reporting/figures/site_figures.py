"""Map of the method to take by bandwidth and number of sites, with contours of the share of time computing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array
from paceline.planning.compare.site_map import SiteMap
from paceline.planning.compare.site_table import Further
from paceline.reporting.figures.report_figures import canvas, check_format, light, save

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

COLOURS = {
    "dense": "other-soft",
    "int8": "network-soft",
    "diloco": "compute-soft",
    "streaming": "codec-soft",
    "sparseloco": "run-2",
    "muloco": "run-3",
}
"""Colours of the methods, by name in the palette."""
HATCHES = {"dense": "", "int8": "..", "diloco": "//", "streaming": "\\\\", "sparseloco": "xx", "muloco": "--"}
"""Hatches of the methods: they are told apart without colour too."""
FAINT = {"sparseloco": 0.35, "muloco": 0.35}
"""Opacity of the methods whose colour is strong."""
SHARES = (0.5, 0.8, 0.9, 0.95)
"""Shares of time computing that have a contour."""
WINS = "DiLoCo wins to its left,\nto an equal loss"
SIZE = (7.6, 3.9)


def write_picture(answer: SiteMap, further: Further, where: str) -> Path:
    """Write the map as an SVG or PNG file. Raises UserError."""
    path = Path(where)
    check_format(path)
    with canvas(*SIZE, light()) as figure:
        _draw(figure, answer, further, light())
        save(figure, path)
    return path


def _draw(figure: Figure, answer: SiteMap, further: Further, palette: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    axes = figure.subplots()
    speed, sites = np.log10(np.array(answer.bandwidths) * 8 / 1e9), np.log2(np.array(answer.sites))
    edges = [_edges(values) for values in (speed, sites)]
    shown = sorted({*answer.best.ravel().tolist()})
    for k in shown:
        method, colour = answer.methods[k].name, palette[COLOURS.get(answer.methods[k].name, "other-soft")]
        for i, j in np.argwhere(answer.best == k).tolist():
            (left, right), (low, high) = edges[0][j : j + 2], edges[1][i : i + 2]
            axes.fill([left, right, right, left], [low, low, high, high], facecolor=colour, edgecolor=palette["rule"],
                      hatch=HATCHES.get(method, ""), linewidth=0, alpha=FAINT.get(method, 0.8))  # fmt: skip
    if min(answer.computing.shape) > 1:
        lines = axes.contour(speed, sites, answer.most_computing, levels=SHARES, colors=[palette["ink"]], linewidths=1.1)
        axes.clabel(lines, fmt=lambda share: f"{share:.0%} computing", fontsize=7.5)
    least = [(answer.local_below(n, known), at) for n, at, known in _known(answer, further)]
    ends = [(np.log10(w * 8 / 1e9) if w else -9.0, at) for w, at in least if w < np.inf]
    if ends:
        axes.plot(*zip(*ends, strict=True), color=palette["ink"], linestyle="--", marker="o", markersize=4, label=WINS)
    axes.set_xlim(edges[0][0], edges[0][-1])
    axes.set_ylim(edges[1][0], edges[1][-1])
    marks = [mark for mark in range(-2, 4) if edges[0][0] <= mark <= edges[0][-1]]
    axes.set_xticks(marks, [f"{10.0**mark:g}" for mark in marks])
    axes.set_yticks(sites, [str(n) for n in answer.sites])
    axes.set_xlabel("bandwidth of a site in one direction, Gb/s")
    axes.set_ylabel("sites")
    site = f"{answer.site.world_size} {answer.site.device.name}"
    axes.set_title(f"{answer.workload}, sites of {site}: method to take for equal samples, {answer.sync_every} local steps")
    patches: list[Artist] = [
        Patch(
            facecolor=palette[COLOURS.get(answer.methods[k].name, "other-soft")],
            edgecolor=palette["rule"],
            hatch=HATCHES.get(answer.methods[k].name, ""),
            alpha=FAINT.get(answer.methods[k].name, 0.8),
            label=answer.methods[k].name,
        )
        for k in shown
    ]
    if ends:
        patches.append(axes.lines[-1])
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _known(answer: SiteMap, further: Further) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield each number of sites that the laws cover, with its place on the axis and the factors on the tokens by method."""
    for sites in answer.sites:
        known = {name: law.high for name, law in further.get(sites, {}).items() if np.isfinite(law.high)}
        if known:
            yield sites, float(np.log2(sites)), known


def _edges(values: Array) -> list[float]:
    """Return the edges of the cells around increasing values, half way between neighbours."""
    if len(values) == 1:
        return [float(values[0]) - 0.5, float(values[0]) + 0.5]
    middles = (values[1:] + values[:-1]) / 2
    return [float(2 * values[0] - middles[0]), *middles.tolist(), float(2 * values[-1] - middles[-1])]
