"""Map of the fastest method by bandwidth and number of sites, with contours of the share of time computing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.planning.compare.site_map import SiteMap
from paceline.reporting.figures.report_figures import PALETTE, canvas, check_format, light, save, to_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "dense": "other-soft",
    "int8": "network-soft",
    "diloco": "compute-soft",
    "streaming": "codec-soft",
    "sparseloco": "run-5",
    "muloco": "run-3",
}
"""Colours of the methods, by name in the palette."""
HATCHES = {"dense": "", "int8": "..", "diloco": "//", "streaming": "\\\\", "sparseloco": "xx", "muloco": "--"}
"""Hatches of the methods: they are told apart without colour too."""
SHARES = (0.5, 0.8, 0.9, 0.95)
"""Shares of time computing that have a contour."""
SIZE = (7.6, 3.9)


def site_svg(answer: SiteMap, name: str) -> str:
    """Draw the map for a page."""
    with canvas(*SIZE) as figure:
        _draw(figure, answer, PALETTE)
        return to_svg(figure, name, f"Fastest method for {answer.workload} by bandwidth and number of sites")


def write_picture(answer: SiteMap, where: str) -> Path:
    """Write the map as an SVG or PNG file. Raises UserError."""
    path = Path(where)
    check_format(path)
    with canvas(*SIZE, light()) as figure:
        _draw(figure, answer, light())
        save(figure, path)
    return path


def _draw(figure: Figure, answer: SiteMap, palette: Mapping[str, str]) -> None:
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
                      hatch=HATCHES.get(method, ""), linewidth=0, alpha=0.75)  # fmt: skip
    if min(answer.computing.shape) > 1:
        lines = axes.contour(speed, sites, answer.computing, levels=SHARES, colors=[palette["ink"]], linewidths=1.1)
        axes.clabel(lines, fmt=lambda share: f"{share:.0%} computing", fontsize=7.5)
    axes.set_xlim(edges[0][0], edges[0][-1])
    axes.set_ylim(edges[1][0], edges[1][-1])
    marks = [mark for mark in range(-2, 4) if edges[0][0] <= mark <= edges[0][-1]]
    axes.set_xticks(marks, [f"{10.0**mark:g}" for mark in marks])
    axes.set_yticks(sites, [str(n) for n in answer.sites])
    axes.set_xlabel("bandwidth of a site in one direction, Gb/s")
    axes.set_ylabel("sites")
    site = f"{answer.site.world_size} {answer.site.device.name}"
    axes.set_title(f"{answer.workload}, sites of {site}: fastest method, {answer.sync_every} local steps")
    patches = [
        Patch(
            facecolor=palette[COLOURS.get(answer.methods[k].name, "other-soft")],
            edgecolor=palette["rule"],
            hatch=HATCHES.get(answer.methods[k].name, ""),
            label=answer.methods[k].name,
        )
        for k in shown
    ]
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _edges(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
    """Return the edges of the cells around increasing values, half way between neighbours."""
    if len(values) == 1:
        return [float(values[0]) - 0.5, float(values[0]) + 0.5]
    middles = (values[1:] + values[:-1]) / 2
    return [float(2 * values[0] - middles[0]), *middles.tolist(), float(2 * values[-1] - middles[-1])]
