"""Writes prediction/convergence.toml: samples to the target against the batch, from MLPerf's logs, and measured accuracies.

    python benchmarks/convergence.py mlperf_training.csv [--out src/paceline/prediction/convergence.toml]

The CSV holds one row for each system of MLPerf Training v0.6 to v1.1. Its columns ``round``, ``division``, ``benchmark``,
``global_batch`` and ``samples_to_target_median`` are used: closed division from v0.7 on, where rules and targets agree. The
transformer is left out, because some submitters log its batch in tokens and others in sentences. Accuracies are those of
``results/accuracy_*.csv``. The file holds constants that were derived from these, not the rows.

MLCommons publishes reference convergence points for ResNet-50 and BERT with their recipes. The curves of these two are fitted
to the points, and the logs only say how far runs lie from them. ``time_to_train.py`` compares both. No submission enters the
points. They predict submissions as well as a fit to other submissions does, and cover more batches (BERT: 256 to 16,384).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from accuracy_summary import read

from paceline.prediction.learning.convergence import Convergence, Point, fit
from paceline.strategy.recipe import reference_points

HERE = Path(__file__).parent
OUT = HERE.parent / "src/paceline/prediction/convergence.toml"
SOURCE = "derived from MLPerf Training logs v0.7 to v1.1, closed division, unverified"
IMAGENET, COCO = 1_281_167, 117_266
RANDOM = "from random weights"
BENCHMARKS: dict[str, tuple[tuple[str, ...], str, str, int]] = {
    "resnet": (("resnet-50",), "75.9 % top-1 on ImageNet (MLPerf)", RANDOM, IMAGENET),
    "ssd": (("ssd-resnet34",), "0.23 mAP on COCO (MLPerf)", "from a ResNet-34 trained on ImageNet", COCO),
    "maskrcnn": (
        ("mask-rcnn",),
        "0.377 box and 0.339 mask mAP on COCO (MLPerf)",
        "from a ResNet-50 trained on ImageNet",
        COCO,
    ),
    "unet3d": (("unet3d",), "0.908 mean Dice on KiTS19 (MLPerf)", RANDOM, 168),
    "gnmt": (("gnmt",), "24.0 BLEU on WMT16 English to German (MLPerf)", RANDOM, 0),
    "bert": (("bert-large", "bert-large-mlm"), "0.72 masked-LM accuracy (MLPerf)", "from MLPerf's checkpoint", 0),
}
"""Networks, target, where runs start (mlcommons/training, the benchmark's README), samples of one epoch (0 where the logs do
not say)."""
TOKENS = {"bert": 512}
"""Of a sequence, with its padding."""
PADDING = {"bert": 0.5}
"""Share of the tokens that is padding, which submissions do not compute (Krell et al. 2021, arXiv:2107.02027, section 2)."""
POINTS = "MLPerf Training v4.0 reference convergence points (mlcommons/logging at 7bbf7926)"


def read_points(path: Path, name: str) -> list[Point]:
    """Those of one benchmark."""
    with path.open(newline="") as file:
        return [
            Point(float(r["global_batch"]), float(r["samples_to_target_median"]))
            for r in csv.DictReader(file)
            if r["samples_to_target_median"] and r["global_batch"] and r["benchmark"] == name
            if r["division"].lower() in ("closed", "close") and r["round"] != "v0.6"
        ]


def curves(path: Path) -> list[dict[str, Any]]:
    """One entry a benchmark."""
    entries = []
    for name, (workloads, target, start, epoch) in BENCHMARKS.items():
        curve = from_reference(path, name) if points_of(workloads[0]) else fit(read_points(path, name), target, SOURCE, epoch)
        entries.append(
            {
                "benchmark": name,
                "workloads": list(workloads),
                "target": target,
                "start": start,
                "source": curve.source,
                "min_samples": float(f"{curve.min_samples:.4g}"),
                "critical_batch": float(f"{curve.critical_batch:.4g}"),
                "num_points": curve.num_points,
                "low_batch": curve.low_batch,
                "high_batch": curve.high_batch,
                "spread": round(curve.spread, 4),
                "epoch_samples": epoch,
                "tokens": TOKENS.get(name, 0),
                "padding": PADDING.get(name, 0.0),
            }
        )
    return entries


def from_reference(path: Path, name: str) -> Convergence:
    """The curve through the reference points. Its spread: of the submissions around it, or its own where that is more."""
    (network, *_), target, _, epoch = BENCHMARKS[name]
    curve = fit(points_of(network), target, "", epoch)
    off = [math.log(p.samples / curve.samples(p.global_batch_size, beyond=True)) for p in read_points(path, name)]
    source = f"{POINTS}; spread of {len(off)} submissions of v0.7 to v1.1, unverified"
    return replace(curve, source=source, spread=max(curve.spread, math.sqrt(fmean(x * x for x in off))))


def points_of(network: str) -> list[Point]:
    """MLPerf's reference points; none of a network that has none."""
    return [Point(float(batch), samples) for batch, samples in reference_points(network)]


def without_one(points: list[Point]) -> tuple[float, float]:
    """Mean and worst relative error of each batch, predicted by a curve that was fitted without it."""
    errors = []
    for batch in {p.global_batch_size for p in points}:
        own = median(p.samples for p in points if p.global_batch_size == batch)
        curve = fit([p for p in points if p.global_batch_size != batch], "", "")
        errors.append(abs(curve.samples(batch, beyond=True) / own - 1))
    return fmean(errors), max(errors)


def accuracies() -> list[dict[str, Any]]:
    """One entry for each compression and setting with at least two seeds."""
    entries = []
    for (network, data, _, _, workers, _, _), lines in read(sorted((HERE / "results").glob("accuracy_*.csv"))).items():
        for line in lines:
            if line.compression != "dense" and not math.isnan(line.error):
                entries.append(
                    {
                        "compression": line.compression,
                        "points": round(line.difference, 3),
                        "error": round(line.error, 3),
                        "seeds": len(line.differences),
                        "network": network,
                        "data": data,
                        "workers": workers,
                    }
                )
    return sorted(entries, key=lambda entry: str(entry["compression"]))


def toml(path: Path) -> str:
    """The whole file."""
    lines = ["# Written by benchmarks/convergence.py; see there for the source."]
    for kind, entries in (("curve", curves(path)), ("accuracy", accuracies())):
        for entry in entries:
            lines += ["", f"[[{kind}]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.write_text(toml(options.csv), encoding="utf-8")
    print("| benchmark | points | batches | Emin, epochs | Bcrit | spread | one batch left out: mean, worst |")
    print("|---|---|---|---|---|---|---|")
    for entry in curves(options.csv):
        mean, worst = without_one(points_of(entry["workloads"][0]) or read_points(options.csv, entry["benchmark"]))
        epochs = f"{entry['min_samples'] / entry['epoch_samples']:.1f}" if entry["epoch_samples"] else "-"
        batches = f"{entry['low_batch']:g} to {entry['high_batch']:g}"
        numbers = f"{entry['critical_batch']:,.0f} | {entry['spread']:.1%} | {mean:.1%}, {worst:.1%}"
        print(f"| {entry['benchmark']} | {entry['num_points']} | {batches} | {epochs} | {numbers} |")
