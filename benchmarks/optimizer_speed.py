"""A step of LARS and LAMB beside other implementations and the least traffic of memory, as rows of a CSV file; their picture.

    python benchmarks/optimizer_speed.py --threads 1 2 --out RESULTS/optimizer_speed.csv
    python benchmarks/optimizer_speed.py --out RESULTS/optimizer_speed.csv --draw RESULTS/optimizer_speed.svg

RESULTS is benchmarks/results. One row a contender. The rows of one optimizer and number of threads are of one run, in which the
contenders took turns (`paceline bench optimizer`). --draw measures nothing: it draws the newest rows.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

from rows import append

from paceline.cli.commands.bench import optimizer_screen
from paceline.training.optimizers import bench

COLUMNS = (
    "optimizer",
    "variant",
    "network",
    "tensors",
    "parameters",
    "device",
    "threads",
    "contender",
    "kind",
    "repetitions",
    "ms",
    "p10_ms",
    "p90_ms",
    "floor_words",
    "floor_ms",
    "memcpy_gb_per_s",
    "in_place_gb_per_s",
)
COLOURS = {"ours": "#3b6ea5", "peer": "#9aa5b1", "another algorithm": "#d9c9a3"}


def main(arguments: list[str] | None = None) -> None:
    """Measure and add rows, or draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet-50")
    parser.add_argument("--optimizer", nargs="+", default=list(bench.NAMES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--repetitions", type=int, default=bench.REPETITIONS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draw", type=Path)
    options = parser.parse_args(arguments)
    if options.draw:
        draw(options.out, options.draw)
        return
    for threads in options.threads:
        speeds = bench.measure(
            options.network, options.optimizer, threads=threads, device=options.device, repetitions=options.repetitions
        )
        for speed in speeds:
            for row in rows(speed):
                append(options.out, COLUMNS, {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})
        print(optimizer_screen(speeds).text(), flush=True)


def rows(speed: bench.OptimizerSpeed) -> Iterator[dict[str, object]]:
    """One row a contender."""
    shared = {name: getattr(speed, name) for name in COLUMNS if hasattr(speed, name)}
    contenders = {bench.OURS: speed.ms_per_step, **speed.peers, bench.ADAMW: speed.fused_adamw_ms}
    for name, ms in contenders.items():
        low, high = speed.spread[name]
        kind = {bench.OURS: "ours", bench.ADAMW: "another algorithm"}.get(name, "peer")
        yield {**shared, "contender": name, "kind": kind, "ms": ms, "p10_ms": low, "p90_ms": high}


def draw(source: Path, picture: Path) -> None:
    """Bars of ms a step, the floor at both rates as lines; a panel for each optimizer, of the most threads measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with source.open() as file:
        measured = list(csv.DictReader(file))
    panels = {}
    for optimizer in dict.fromkeys(row["optimizer"] for row in measured):
        own = [row for row in measured if row["optimizer"] == optimizer]
        most = max(int(row["threads"]) for row in own)
        # a later row replaces an earlier one of the same contender
        panels[optimizer] = {row["contender"]: row for row in own if int(row["threads"]) == most}
    figure, axes = plt.subplots(1, len(panels), figsize=(4.8 * len(panels), 2.9), squeeze=False)
    for axis, (optimizer, newest) in zip(axes[0], panels.items(), strict=True):
        drawn = sorted(newest.values(), key=lambda row: float(row["ms"]))
        for at, row in enumerate(drawn):
            ms = float(row["ms"])
            axis.barh(at, ms, 0.7, color=COLOURS[row["kind"]], zorder=2)
            axis.text(ms, at, f" {ms:.3g} ms", va="center", fontsize=8, bbox={"color": "white", "pad": 0.5}, zorder=1)
        head = drawn[0]
        floor = float(head["floor_ms"])
        in_place = floor * float(head["memcpy_gb_per_s"]) / float(head["in_place_gb_per_s"])
        for at, ms, name in ((-1.5, floor, "floor, memcpy"), (-0.9, in_place, "floor, y += x")):
            axis.plot([ms, ms], [at, len(drawn) - 0.4], color="black", lw=1, ls="--", zorder=0)
            axis.text(ms, at, f" {name}: {ms:.3g} ms", fontsize=8, va="center")
        axis.set_yticks(range(len(drawn)), [row["contender"] for row in drawn], fontsize=8)
        axis.set_xlim(0, 1.2 * max(float(row["ms"]) for row in drawn))
        axis.set_ylim(len(drawn) - 0.4, -1.8)
        axis.set_title(f"{optimizer.upper()}, {head['network']}, {head['threads']} threads", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(length=0)
    figure.tight_layout()
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
