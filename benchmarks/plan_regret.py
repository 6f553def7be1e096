"""What it costs to take the layout that the predictor ranks first, where published tables measured several.

    python benchmarks/plan_regret.py FOLDER --out RESULTS/plan_regret.csv

FOLDER holds the CSV files of ``validation_table.py``. Rows of one table with the same network, sequence length, devices, global
batch and precision are one choice among the layouts that were measured. The regret is the measured time of the layout that is
predicted to be the fastest over the least measured time, minus 1. ``guess`` is the mean regret of a layout that is drawn by
lot. A layout that was measured several times, also with another release of the software, counts with its median.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
from rows import append
from validation_table import run

from paceline.strategy import Strategy
from paceline.validation.score import ScoredCase

COLUMNS = ("table", "choices", "layouts", "median", "p90", "worst", "guess", "right", "worst_choice")
TABLES = ("vtrain", "megatron_bridge", "dgxc", "mlperf", "mlperf v2.0 to v3.1")


@dataclass(frozen=True, slots=True)
class Measured:
    """A layout with its predicted and its measured seconds."""

    layout: Strategy
    predicted_s: float
    measured_s: float


def choices(points: Iterable[ScoredCase]) -> dict[Hashable, list[Measured]]:
    """Rows that differ in their layout alone, by what they share; those of a single layout are no choice."""
    groups: dict[Hashable, dict[Strategy, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        case = point.case
        cluster, strategy = case.setting.cluster, case.setting.strategy
        place = cluster.device.name, cluster.world_size, cluster.devices_per_node
        where = (case.workload.name, case.workload.sample, *place, strategy.global_batch_size, case.precision)
        groups[where][strategy].append((point.estimate.step_s, case.step_s))
    return {
        where: [Measured(layout, of[0][0], median(s for _, s in of)) for layout, of in layouts.items()]
        for where, layouts in groups.items()
        if len(layouts) > 1
    }


def regret(layouts: Sequence[Measured]) -> float:
    """Of the layout that is predicted to be the fastest."""
    chosen = min(layouts, key=lambda layout: layout.predicted_s)
    return chosen.measured_s / min(layout.measured_s for layout in layouts) - 1


def guess(layouts: Sequence[Measured]) -> float:
    """Mean regret of a layout drawn by lot."""
    return fmean(layout.measured_s for layout in layouts) / min(layout.measured_s for layout in layouts) - 1


def row(table: str, of_table: dict[Hashable, list[Measured]]) -> dict[str, object]:
    """The figures of one table."""
    regrets = {where: regret(layouts) for where, layouts in of_table.items()}
    values = np.array(list(regrets.values()))
    worst = max(regrets, key=lambda where: regrets[where])
    model, sample, device, devices, *_ = worst  # type: ignore[misc]
    figures = (
        len(values),
        sum(map(len, of_table.values())),
        *(f"{value:.4f}" for value in (np.median(values), np.quantile(values, 0.9), values.max())),
        f"{fmean(guess(layouts) for layouts in of_table.values()):.4f}",
        f"{np.mean(values < 1e-9):.3f}",
        f"{model}, {sample}, {devices} {device}",
    )
    return dict(zip(COLUMNS, (table, *figures), strict=True))


def main() -> None:
    """Measure and add a row for each table that has a choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tables", nargs="+", default=TABLES, choices=TABLES)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for table in options.tables:
        of_table = choices(run(options.folder, table, "none").points)
        if not of_table:
            print(f"{table:<16} no two layouts of one job", flush=True)
            continue
        figures = row(table, of_table)
        append(options.out, COLUMNS, figures)
        print(*(f"{name} {value}" for name, value in figures.items()), sep=", ", flush=True)


if __name__ == "__main__":
    main()
