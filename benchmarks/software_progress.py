"""Progress of software on unchanged hardware: how much faster releases became in a year, by generation of chips.

    python benchmarks/software_progress.py FOLDER --out RESULTS/software_progress.csv

FOLDER holds MLPerf's rounds (``mlperf_training*.csv``), timm's releases of PyTorch (``timm_rtx3090*.csv``) and containers of
Megatron-Bridge (``megatron_bridge_h100.csv``). A system is a chip with a number of devices, a network and nearly a batch.
Its first and its last release make a pair. The weight of a pair is one over the root of its generation's number of pairs. The
lines ``left out`` have the error of the predicted change on a generation that the rate was not fitted on. The quantiles of the
yearly change are those of ``src/paceline/calibration/software_progress.toml``.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rows import append

from paceline.calibration.constants import efficiency

ROUNDS = {
    "v0.6": 2019.5,
    "v0.7": 2020.6,
    "v1.0": 2021.5,
    "v1.1": 2021.9,
    "v2.0": 2022.5,
    "v2.1": 2022.9,
    "v3.0": 2023.5,
    "v3.1": 2023.9,
    "v4.0": 2024.4,
    "v4.1": 2024.9,
}
"""Time of publication of MLPerf's rounds."""
PYTORCH = {"1.10": 2021.8, "1.11": 2022.2, "1.12": 2022.5}
"""Time of PyTorch's releases (github.com/pytorch/pytorch/releases)."""
TIMED = ("step_timer", "tracked", "eval_slope")
"""Sources of a rate that are measured on steps."""
GENERATIONS = (
    ("V100", "Volta"),
    ("A100", "Ampere"),
    ("A30", "Ampere"),
    ("H100", "Hopper"),
    ("H200", "Hopper"),
    ("L4", "Ada"),
    ("Gaudi2", "Gaudi 2"),
    ("Gaudi", "Gaudi"),
    ("TPU-v3", "TPU v3"),
    ("TPU-v4", "TPU v4"),
    ("TPU-v5", "TPU v5"),
    ("IPU", "IPU"),
    ("RTX 3090", "Ampere GA10x"),
)
"""Generation of a device, by the first name that fits."""
QUANTILES = (0.1, 0.5, 0.9)
COLUMNS = ("what", "generation", "pairs", "yearly_change", "error_none", "error_shipped", "error_left_out")


@dataclass(frozen=True)
class Pair:
    """The same system with two releases: the years between them, and the logarithm of the ratio of their rates."""

    generation: str
    years: float
    faster: float


System = tuple[str, ...]
Rate = tuple[System, float, float]
"""A system, the time of its release, and its rate."""


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def mlperf(folder: Path) -> Iterator[Rate]:
    """Rates of MLPerf's closed division."""
    for name in ("mlperf_training", "mlperf_training_v2_v3", "mlperf_training_v4"):
        for row in _rows(folder / f"{name}.csv"):
            rate, devices, batch = (float(row[key] or 0) for key in ("throughput_samples_per_s", "num_accel", "global_batch"))
            if row["throughput_source"] in TIMED and row["division"] == "closed" and rate and devices and batch:
                size = str(round(2 * math.log2(batch / devices)))
                yield (row["accelerator"], row["benchmark"], row["num_accel"], size), ROUNDS[row["round"]], rate


def timm(folder: Path) -> Iterator[Rate]:
    """Rates of timm's networks on an RTX 3090."""
    for name in ("timm_rtx3090_older_pytorch", "timm_rtx3090"):
        for row in _rows(folder / f"{name}.csv"):
            release = re.search(r"PyTorch (\d+\.\d+)", row["framework"])
            layout = "nhwc" if "nhwc" in row["source"] else "nchw"
            if release and row["value"]:
                yield (row["device"], row["model"], layout, row["global_batch"]), PYTORCH[release[1]], float(row["value"])


def megatron(folder: Path) -> Iterator[Rate]:
    """Rates of Megatron-Bridge's containers on H100."""
    layout = ("model", "num_gpus", "precision", "global_batch", "micro_batch", "seq_len", "tp", "pp", "cp", "vp", "ep")
    for row in _rows(folder / "megatron_bridge_h100.csv"):
        release = re.match(r"(\d\d)\.(\d\d)", row["container"])
        if release and row["tokens_per_s_per_gpu"]:
            time = 2000 + int(release[1]) + (int(release[2]) - 1) / 12
            yield ("H100", *(row[key] for key in layout)), time, float(row["tokens_per_s_per_gpu"])


def pairs(rates: Iterator[Rate]) -> Iterator[Pair]:
    """First and last release of each system; of one release the fastest run."""
    best: dict[System, dict[float, float]] = defaultdict(dict)
    for system, time, rate in rates:
        best[system][time] = max(rate, best[system].get(time, 0.0))
    for system, releases in best.items():
        generation = next((name for start, name in GENERATIONS if system[0].startswith(start)), "")
        first, last = min(releases), max(releases)
        if generation and last > first:
            yield Pair(generation, last - first, math.log(releases[last] / releases[first]))


def weights(found: Sequence[Pair]) -> np.ndarray:
    """Weight of each pair."""
    counts = Counter(pair.generation for pair in found)
    return np.array([counts[pair.generation] ** -0.5 for pair in found])


def quantile(values: np.ndarray, weight: np.ndarray, share: float) -> float:
    """Weighted quantile."""
    order = np.argsort(values)
    below = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(below, share)), len(values) - 1)])


def yearly(found: Sequence[Pair], share: float = 0.5) -> float:
    """Weighted quantile of the logarithm of the yearly change."""
    return quantile(np.array([pair.faster / pair.years for pair in found]), weights(found), share)


def error(found: Sequence[Pair], predicted: Callable[[Pair], float]) -> float:
    """Mean error of a predicted ratio of rates, as a fraction."""
    return float(np.mean([abs(math.expm1(predicted(pair) - pair.faster)) for pair in found]))


def main(folder: str, out: Path | None) -> None:
    """Print the rate of each generation, and the error of rates fitted without it."""
    found = [pair for read in (mlperf, timm, megatron) for pair in pairs(read(Path(folder)))]
    gain = math.log(efficiency("tuned").yearly_gain)
    for generation in sorted({pair.generation for pair in found}):
        own = [pair for pair in found if pair.generation == generation]
        others = yearly([pair for pair in found if pair.generation != generation])
        keep(out, "left out", generation, len(own), yearly(own), *errors(own, gain, others))
    for share in QUANTILES:
        keep(out, f"quantile {share:g}", "all", len(found), yearly(found, share))


def errors(own: Sequence[Pair], gain: float, rate: float) -> tuple[float, float, float]:
    """Errors on a generation: with no change, with the shipped yearly gain, and with the rate of the others."""
    return error(own, lambda pair: 0.0), error(own, lambda pair: gain * pair.years), error(own, lambda pair: rate * pair.years)


def keep(out: Path | None, *values: str | float) -> None:
    """Print a line, and add it to the file."""
    cells = [round(value, 4) if isinstance(value, float) else value for value in values]
    row = dict(zip(COLUMNS, cells + [""] * (len(COLUMNS) - len(cells)), strict=True))
    print(*row.values(), flush=True)
    if out:
        append(out, COLUMNS, row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
