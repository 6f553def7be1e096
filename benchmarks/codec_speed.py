"""Speed of every codec and direction beside memcpy, for one thread and more, as rows of a CSV file; and their picture.

    python benchmarks/codec_speed.py --out RESULTS/codec_speed.csv
    python benchmarks/codec_speed.py --out RESULTS/codec_speed.csv --draw RESULTS/codec_speed.png

RESULTS is benchmarks/results. A row is the median of several public calls (header and checksum included) on one tensor of
heavy-tailed values. memcpy is measured between the same calls. --draw measures nothing: it draws the newest rows.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rows import append

from paceline.codecs import bench
from paceline.units import digits3, parse_bytes

COLUMNS = tuple(field.name for field in fields(bench.CodecSpeed))
COLOURS = {"encode": "#3b6ea5", "decode": "#d08a2f", "decode_add": "#5b8c5a"}


def main() -> None:
    """Measure and add rows, or draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="100MB")
    parser.add_argument("--codec", nargs="+")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--backends", nargs="+", default=[""], help="'' is the fastest that serves")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draw", type=Path)
    options = parser.parse_args()
    if options.draw:
        draw(options.out, options.draw)
        return
    for threads in options.threads:
        for backend in options.backends:
            for speed in bench.measure(int(parse_bytes(options.size)) // 4, options.codec, threads, backend):
                append(options.out, COLUMNS, {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(speed).items()})
                rate = f"{digits3(speed.gb_per_s_per_core)} GB/s per core, {speed.relative_to_memcpy:.0%} of memcpy"
                print(f"{speed.codec:<14}{speed.direction:<12}{threads} threads  {rate}", flush=True)


def draw(source: Path, picture: Path) -> None:
    """Bars of GB/s per core for each codec, the copy's rate as a mark; a panel for each number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with source.open() as file:  # a later row replaces an earlier one of the same case
        newest = {(r["memcpy_threads"], r["codec"], r["direction"]): r for r in map(_numbered, csv.DictReader(file))}
    counts = sorted({key[0] for key in newest})
    codecs = list(dict.fromkeys(key[1] for key in newest))
    figure, axes = plt.subplots(
        1, len(counts), figsize=(4.6 * len(counts), 0.9 + 0.55 * len(codecs)), sharey=True, squeeze=False
    )
    for panel, count in zip(axes[0], counts, strict=True):
        for at, codec in enumerate(codecs):
            for n, (direction, colour) in enumerate(COLOURS.items()):
                row = newest.get((count, codec, direction))
                if row is None:
                    continue
                y = at + 0.27 * (n - 1)
                panel.barh(y, row["gb_per_s_per_core"], 0.25, color=colour, label=direction if at == 0 else None)
                copied = row["memcpy_gb_per_s"] / count
                panel.plot([copied] * 2, [y - 0.12, y + 0.12], color="black", lw=1.5, label="memcpy" if at == n == 0 else None)
        panel.set_title(f"{count} thread{'s' if count > 1 else ''}", loc="left", fontsize=10, fontweight="bold")
        panel.set_xlabel("GB/s of fp32, per core")
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(length=0)
        panel.grid(axis="x", linewidth=0.6, alpha=0.5)
        panel.set_axisbelow(True)
    axes[0][0].set_yticks(range(len(codecs)), codecs)
    axes[0][0].invert_yaxis()
    axes[0][-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture, dpi=130, metadata={"Software": None})


def _numbered(row: dict[str, str]) -> dict[str, Any]:
    numbers = {k: float(row[k]) for k in ("gb_per_s_per_core", "memcpy_gb_per_s")}
    return {**row, **numbers, "memcpy_threads": int(row["memcpy_threads"])}


if __name__ == "__main__":
    main()
