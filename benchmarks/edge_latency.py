"""Latencies that others published for edge processors, beside what is predicted from published peaks: rows of a CSV file.

    python benchmarks/edge_latency.py --out RESULTS/edge_latency.csv
    python benchmarks/edge_latency.py --short --out FILE

RESULTS is benchmarks/results; the published rows are those of validation/edge/latencies.csv. Each layer is timed on one core
here; how near it comes to this machine's own roofline, it is taken to come to the device's. The published runs are of another
runtime (ncnn), which computes 3x3 convolutions with fewer products.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rows import append

from paceline import models
from paceline.hardware.edge import edge_device
from paceline.slimming.latency.edge_times import Machine, on_device, this_machine
from paceline.slimming.latency.onnx_nodes import OnnxNode, call_seconds, seconds
from paceline.slimming.latency.step_times import shape_key, step_seconds
from paceline.slimming.latency.width_tables import parts_of
from paceline.slimming.structures.tracing import structures_of

PUBLISHED = Path(__file__).parents[1] / "validation" / "edge" / "latencies.csv"
COLUMNS = (
    "device",
    "threads",
    "network",
    "published_ms",
    "predicted_ms",
    "low_ms",
    "high_ms",
    "error",
    "in_range",
    "here_ms",
    "here_gflop_per_s",
    "here_gb_per_s",
    "load",
)


def main(arguments: list[str] | None = None) -> None:
    """Measure here, predict, and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--short", action="store_true", help="one network")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with PUBLISHED.open(newline="") as file:
        published = list(csv.DictReader(file))
    names = sorted({row["network"] for row in published})
    errors = []
    for name in names[:1] if options.short else names:
        nodes, rest = measured(name)
        for row in published:
            if row["network"] == name:
                made = predicted(row, nodes, rest, this_machine())
                append(options.out, COLUMNS, made)
                errors.append(abs(float(made["error"])))
    print(f"median error {median(errors):.0%} of {len(errors)}")


def measured(name: str) -> tuple[list[tuple[str, OnnxNode, float]], float]:
    """The layers of a network with their seconds here, and the seconds of the rest."""
    model = models.model(name)
    found = structures_of(models.build(name), (torch.randn(1, *model.input.shape),))
    known: dict[OnnxNode, float] = {}
    nodes = []
    for part in parts_of(found):
        if part.node not in known:
            known[part.node] = seconds(part.node)
        nodes.append((part.name, part.node, known[part.node]))
    steps: dict[tuple[object, ...], float] = {}
    for step in found.steps:
        if shape_key(step) not in steps:
            steps[shape_key(step)] = sum(step_seconds(step))
    return nodes, call_seconds() + sum(steps[shape_key(step)] for step in found.steps)


def predicted(row: dict[str, str], nodes: Iterable[tuple[str, OnnxNode, float]], rest: float, here: Machine) -> dict[str, Any]:
    """One published latency and its prediction."""
    nodes = list(nodes)
    found = on_device(nodes, rest, edge_device(row["device"]), int(row["threads"]), here)
    published = float(row["mean_ms"]) / 1e3
    return {
        "device": row["device"],
        "threads": row["threads"],
        "network": row["network"],
        "published_ms": row["mean_ms"],
        "predicted_ms": f"{found.seconds * 1e3:.1f}",
        "low_ms": f"{found.low_s * 1e3:.1f}",
        "high_ms": f"{found.high_s * 1e3:.1f}",
        "error": f"{found.seconds / published - 1:.3f}",
        "in_range": found.low_s <= published <= found.high_s,
        "here_ms": f"{(sum(took for _, _, took in nodes) + rest) * 1e3:.2f}",
        "here_gflop_per_s": f"{here.peak / 1e9:.0f}",
        "here_gb_per_s": f"{here.bandwidth / 1e9:.1f}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


if __name__ == "__main__":
    main()
