"""The accuracy files as a Markdown table: mean and standard deviation over the seeds.

    python benchmarks/summary.py RESULTS/terngrad_accuracy_digits.csv RESULTS/terngrad_accuracy_mnist.csv

RESULTS is benchmarks/results.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path


def cell(values: list[float]) -> str:
    """Mean and, of several runs, the spread, in percent."""
    if not values:
        return "not run"
    mean = 100 * statistics.fmean(values)
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} +- {100 * statistics.stdev(values):.2f}"


def main(paths: list[str]) -> None:
    """Print one table for all files."""
    accuracies: dict[tuple[str, str, int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        with Path(path).open() as file:
            for row in csv.DictReader(file):
                key = (row["data"], row["optimizer"], int(row["workers"]), row["epochs"])
                accuracies[key][row["compression"]].append(float(row["accuracy"]))
    print("| data | optimizer | workers | epochs | seeds | dense, % | TernGrad, % | difference |")
    print("|---|---|---|---|---|---|---|---|")
    for (data, optimizer, workers, epochs), runs in sorted(accuracies.items()):
        dense, terngrad = runs["dense"], runs["terngrad"]
        gap = f"{100 * (statistics.fmean(terngrad) - statistics.fmean(dense)):+.2f}" if dense and terngrad else "-"
        seeds = max(len(dense), len(terngrad))
        print(f"| {data} | {optimizer} | {workers} | {epochs} | {seeds} | {cell(dense)} | {cell(terngrad)} | {gap} |")


if __name__ == "__main__":
    main(sys.argv[1:])
