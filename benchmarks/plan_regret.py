"""What it costs to take the layout that the predictor ranks first, where published tables measured several.

    python benchmarks/plan_regret.py FOLDER --out RESULTS/plan_regret.csv

FOLDER holds CSV files of published measurements. Rows of one table with the same network, sequence length, devices, global
batch, precision and software are one choice among the layouts that were measured, if these are three or more. The regret is
the measured time of the layout that is predicted to be the fastest over the least measured time, minus 1. ``chosen`` and
``chosen_worst`` are the regret of the layout that ``plan`` takes: the simplest of those that the model does not tell from the
one with the least expected step over hosts of unknown speed. ``guess`` is the mean regret of a layout that is drawn by lot. A
layout that was measured several times counts with its median. Predictions are cold: constants are fitted without the chip.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
from rows import append

from paceline.calibration.constants import efficiency
from paceline.csv_rows import read
from paceline.planning.compare.layout_difference import LIKELY, layout_sigmas, wait_shares
from paceline.planning.search.ranking import MOST_UNRESOLVED
from paceline.planning.search.slow_hosts import SlowHosts
from paceline.prediction import Prediction, Predictor
from paceline.strategy import Strategy
from paceline.validation import Info
from paceline.validation.case import Case
from paceline.validation.informed_predictor import InformedPredictor
from paceline.validation.sets import BAD_ROW, adapter

COLUMNS = ("table", "choices", "layouts", "median", "p90", "worst", "chosen", "chosen_worst", "guess", "right", "worst_choice")
TABLES: Mapping[str, tuple[str, str]] = {
    "vtrain": ("vtrain", "vtrain_megatron_a100"),
    "megatron_bridge": ("megatron_bridge", "megatron_bridge_h100"),
    "megatron_bridge_gb200": ("megatron_bridge", "megatron_bridge_gb200"),
    "dgxc": ("dgxc", "nvidia_dgxc_h100_bf16"),
    "mlperf v2.0 to v3.1": ("mlperf", "mlperf_training_v2_v3"),
    "mlperf v4": ("mlperf", "mlperf_training_v4"),
    "bigscience": ("published", "bigscience_jean_zay"),
    "dlperf": ("published", "dlperf_v100"),
    "sailor": ("published", "sailor"),
    "simumax": ("published", "simumax_b200"),
    "nemo_megatron": ("published", "nemo_megatron_launcher_a100"),
    "internevo": ("published", "internevo_a100"),
}
"""Adapter and file of each set."""
LEAST = 3
"""Layouts of a choice."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A layout with its predicted and its measured seconds, the predicted seconds by what the step waits for, and the seconds
    that are expected over hosts of unknown speed."""

    layout: Strategy
    predicted_s: float
    measured_s: float
    exposed: Mapping[str, float]
    expected_s: float


def scored(folder: str, table: str) -> Iterator[tuple[Case, Prediction]]:
    """Rows of a table that can be modelled, with their cold predictions."""
    name, file = TABLES[table]
    reader, model = adapter(name), InformedPredictor(lambda case: (), Info(), Info().hold_out)
    for row in reader.joined(read(Path(folder) / f"{file}.csv", (*reader.texts, *reader.numbers))):
        case = reader.read(row)
        if isinstance(case, Case) and case.step_s:
            try:
                yield case, model.prediction(case)
            except BAD_ROW:
                continue


def choices(points: Iterable[tuple[Case, Prediction]], least: int = 2) -> dict[Hashable, list[Measured]]:
    """Rows that differ in their layout alone, by what they share, if these are at least so many layouts."""
    groups: dict[Hashable, dict[Strategy, list[tuple[Case, Prediction]]]] = defaultdict(lambda: defaultdict(list))
    for case, prediction in points:
        cluster, strategy = case.setting.cluster, case.setting.strategy
        place = cluster.device.name, cluster.world_size, cluster.devices_per_node
        software = case.software, case.keys.release, case.keys.system, case.year
        where = (case.workload.name, case.workload.sample, *place, strategy.global_batch_size, case.precision, *software)
        groups[where][strategy].append((case, prediction))
    return {where: [measured(s, of) for s, of in layouts.items()] for where, layouts in groups.items() if len(layouts) >= least}


def measured(layout: Strategy, rows: Sequence[tuple[Case, Prediction]]) -> Measured:
    """A layout from its rows."""
    case, prediction = rows[0]
    cluster, step_s = case.setting.cluster, prediction.step_time_s
    level = "ordinary" if case.software == "ordinary" else "tuned"
    hosts = SlowHosts.of(case.workload, Predictor(constants=efficiency(level, cluster.device.chip)))
    expected_s = float(hosts.of_candidates([(cluster, layout)], np.array([step_s]))[0])
    return Measured(layout, step_s, median(row.step_s for row, _ in rows), prediction.exposed, expected_s)


def regret(layouts: Sequence[Measured], chosen: Measured) -> float:
    """Measured time of a layout over the least, minus 1."""
    return chosen.measured_s / min(layout.measured_s for layout in layouts) - 1


def fastest(layouts: Sequence[Measured]) -> Measured:
    """The layout that is predicted to be the fastest."""
    return min(layouts, key=lambda layout: layout.predicted_s)


def preferred(layouts: Sequence[Measured]) -> Measured:
    """The simplest of the layouts that the model does not tell from the one with the least expected step."""
    first = min(layouts, key=lambda layout: layout.expected_s)
    shares = wait_shares(first.exposed, first.predicted_s)

    def unresolved(layout: Measured) -> bool:
        sigma = layout_sigmas().of(shares, wait_shares(layout.exposed, layout.predicted_s))
        return layout.expected_s / first.expected_s <= min(1 + MOST_UNRESOLVED, np.exp(LIKELY * sigma))

    return min(filter(unresolved, layouts), key=lambda layout: (layout.layout.simplicity, layout.expected_s))


def guess(layouts: Sequence[Measured]) -> float:
    """Mean regret of a layout drawn by lot."""
    return fmean(layout.measured_s for layout in layouts) / min(layout.measured_s for layout in layouts) - 1


def row(table: str, of_table: dict[Hashable, list[Measured]]) -> dict[str, object]:
    """The figures of one table."""
    regrets = {where: regret(layouts, fastest(layouts)) for where, layouts in of_table.items()}
    chosen = [regret(layouts, preferred(layouts)) for layouts in of_table.values()]
    values = np.array(list(regrets.values()))
    worst = max(regrets, key=lambda where: regrets[where])
    model, sample, device, devices, *_ = worst  # type: ignore[misc]
    shares = (np.median(values), np.quantile(values, 0.9), values.max(), np.median(chosen), max(chosen))
    figures = (
        len(values),
        sum(map(len, of_table.values())),
        *(f"{value:.4f}" for value in shares),
        f"{fmean(guess(layouts) for layouts in of_table.values()):.4f}",
        f"{np.mean(values < 1e-9):.3f}",
        f"{model}, {sample}, {devices} {device}",
    )
    return dict(zip(COLUMNS, (table, *figures), strict=True))


def main() -> None:
    """Measure and add a row for each table that has a choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    for table in options.tables:
        of_table = choices(scored(options.folder, table), LEAST)
        if not of_table:
            print(f"{table:<16} no three layouts of one job", flush=True)
            continue
        figures = row(table, of_table)
        append(options.out, COLUMNS, figures)
        print(*(f"{name} {value}" for name, value in figures.items()), sep=", ", flush=True)


if __name__ == "__main__":
    main()
