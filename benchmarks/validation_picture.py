"""Draw ``docs/pictures/predicted_measured.png``: every measured row against its prediction, by chip.

    python benchmarks/validation_picture.py FOLDER [PICTURE]

FOLDER holds the CSV files, with the names that ``validation_table.py`` gives them. Each prediction sees no row of its file, and
its constants were fitted without the chip.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib import pyplot
from validation_table import FILES

from paceline.validation import validate

PICTURE = Path(__file__).parents[1] / "docs/pictures/predicted_measured.png"
COLOURS = (*(f"C{i}" for i in range(10) if i != 7), "black")
"""Colours of the commonest chips; the others are grey."""
MOST = 1500
"""Most rows of a set, evenly: one set has more rows than all others. No row of these files spans lines."""


def thinned(path: Path, folder: Path) -> Path:
    """A copy of the file with at most ``MOST`` of its rows, evenly."""
    head, *rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    copy = folder / path.name
    copy.write_text(head + "".join(rows[:: -(-len(rows) // MOST)]), encoding="utf-8")
    return copy


def main(folder: str, picture: str = "") -> None:
    """Predict the rows, and draw them."""
    rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    count = 0
    with TemporaryDirectory() as copies:
        for name, file in FILES.items():
            found = validate(name.split()[0], thinned(Path(folder) / f"{file}.csv", Path(copies))).points
            points = [point for point in found if point.case.step_s > 0]  # some rows have a memory alone
            count += len(points)
            for point in points:
                rows[point.case.setting.cluster.device.chip].append((point.case.step_s, point.estimate.step_s))
            print(name, len(points), flush=True)
    figure, axes = pyplot.subplots(figsize=(7.2, 6.4), layout="constrained")
    common = [chip for chip, _ in Counter({chip: len(own) for chip, own in rows.items()}).most_common(len(COLOURS))]
    others = [row for chip, own in rows.items() if chip not in common for row in own]
    for index, (chip, own) in enumerate([*((chip, rows[chip]) for chip in common), ("others", others)]):
        measured, predicted = np.array(own).T
        colour = "0.6" if chip == "others" else COLOURS[index]
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
