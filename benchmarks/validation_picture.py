"""Draw ``docs/pictures/predicted_measured.png``: every measured row against its prediction, by chip.

    python benchmarks/validation_picture.py FOLDER [PICTURE]

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them. Each prediction sees no row of its file, and
its constants were fitted without the chip.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from validation_table import FILES, run

PICTURE = Path(__file__).parents[1] / "docs/pictures/predicted_measured.png"
SHOWN = 9
"""Chips with a colour of their own; the others are grey."""
MOST = 1500
"""Dots of a set at most, evenly over its rows: one set has more rows than all others."""


def main(folder: str, picture: str = "") -> None:
    """Predict all rows, and draw them."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    count = 0
    for name in FILES:
        points = run(folder, name, "none").points
        count += len(points)
        for point in points[:: -(-len(points) // MOST) or 1]:
            chip = point.case.setting.cluster.device.chip
            rows[chip].append((point.case.step_s, point.estimate.step_s))
        print(name, len(points), flush=True)
    figure, axes = pyplot.subplots(figsize=(7.2, 6.4), layout="constrained")
    common = [chip for chip, _ in Counter({chip: len(own) for chip, own in rows.items()}).most_common(SHOWN)]
    others = [row for chip, own in rows.items() if chip not in common for row in own]
    for index, (chip, own) in enumerate([*((chip, rows[chip]) for chip in common), ("others", others)]):
        measured, predicted = np.array(own).T
        colour = "0.6" if chip == "others" else f"C{index}"
        axes.scatter(measured, predicted, s=7, alpha=0.5, linewidths=0, color=colour, label=f"{chip} ({len(own):,})")
    ends = np.array(axes.get_xlim()) * [0.5, 2]
    ends[0] = min(min(row) for own in rows.values() for row in own) * 0.7
    for factor, style in ((1.0, "-"), (1.2, ":"), (1 / 1.2, ":")):
        axes.plot(ends, factor * ends, style, color="0.3", linewidth=0.8, zorder=0)
    axes.set(
        xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured step, seconds", ylabel="predicted step, seconds"
    )
    axes.set_title(
        f"{count:,} published steps, predicted from nothing by constants without their chip\ndotted: 20 % off", size=10
    )
    legend = axes.legend(title="chip (dots)", frameon=False, fontsize=8)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    figure.savefig(picture or PICTURE, dpi=110)


if __name__ == "__main__":
    main(*sys.argv[1:3])
