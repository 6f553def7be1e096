"""Latencies published for edge processors, next to predictions from published peaks: rows of a CSV file.

    python benchmarks/edge_latency.py --out RESULTS/edge_latency.csv
    python benchmarks/edge_latency.py --only alexnet vgg-16 --out RESULTS/edge_latency.csv
    python benchmarks/edge_latency.py --short --out FILE
    python benchmarks/edge_latency.py --new --out RESULTS/edge_latency.csv
    python benchmarks/edge_latency.py --summary --out RESULTS/edge_latency.csv
    python benchmarks/edge_latency.py --int8 --out RESULTS/edge_latency_int8.csv
    python benchmarks/edge_latency.py --int8 --summary --out RESULTS/edge_latency_int8.csv

RESULTS is benchmarks/results; the published rows are those of validation/edge/latencies.csv. Each layer is timed on one core
here; how near it comes to this machine's own roofline, it is taken to come to the device's. The published runs are of other
runtimes (ncnn, Tengine, Paddle-Lite, TVM, XNNPACK, TFLite, FeatherCNN), most of which compute 3x3 convolutions with fewer
products.

Each run prints the median error of its rows, and how many lie in the ranges that the package has then: with --new, which adds
the rows that the file lacks, nothing has been fitted to them.

--summary measures nothing. It writes the ratios of published to predicted latencies to src/paceline/hardware/edge_errors.toml,
from which the ranges of answers come, and prints the errors by processor and how often ranges hold rows that they leave out:
all rows of a processor, or of a source.

--int8 does the same for latencies_int8.csv, with processors and microcontrollers of ``edge_int8.py``. Its rows change no range
of the package, and its summary writes nothing. ``here_ms`` stays of fp32.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from edge_int8 import TINY, int8_device
from rows import append, read

from paceline import models
from paceline.hardware.edge import EdgeDevice, edge_device
from paceline.slimming.latency.edge_errors import EdgeError, edge_errors, range_from
from paceline.slimming.latency.edge_times import Machine, on_device, this_machine
from paceline.slimming.latency.onnx_nodes import OnnxNode, call_seconds, seconds
from paceline.slimming.latency.step_times import shape_key, step_seconds
from paceline.slimming.latency.width_tables import parts_of
from paceline.slimming.structures.tracing import structures_of
from paceline.workload.tracing.timm_networks import _timm

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "validation" / "edge" / "latencies.csv"
PUBLISHED_INT8 = PUBLISHED.with_name("latencies_int8.csv")
ERRORS = ROOT / "src" / "paceline" / "hardware" / "edge_errors.toml"
TIMM = {
    "mobilenet-v1": "mobilenetv1_100",
    "mobilenet-v2": "mobilenetv2_100",
    "mobilenet-v3-large": "mobilenetv3_large_100",
    "mobilenet-v3-small": "mobilenetv3_small_100",
    "inception-v4": "inception_v4",
    "inception-resnet-v2": "inception_resnet_v2",
}
"""Names in timm of networks that the zoo lacks."""
COLUMNS = (
    "device",
    "threads",
    "network",
    "source",
    "published_ms",
    "predicted_ms",
    "error",
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
    parser.add_argument("--only", nargs="+", help="networks")
    parser.add_argument("--new", action="store_true", help="only rows that the file lacks")
    parser.add_argument("--summary", action="store_true", help="write the errors, print them by processor")
    parser.add_argument("--int8", action="store_true", help="latencies in int8")
    options = parser.parse_args(arguments)
    if options.summary:
        if not options.int8:
            write_errors(read(options.out))
        print(summary(errors_of(read(options.out)) if options.int8 else edge_errors()))
        return
    torch.set_num_threads(1)
    device_of = int8_device if options.int8 else edge_device
    with (PUBLISHED_INT8 if options.int8 else PUBLISHED).open(newline="") as file:
        published = list(csv.DictReader(file))
    if options.new:
        there = {(row["device"], str(row["threads"]), row["network"], row["source"] or "ncnn") for row in read(options.out)}
        published = [row for row in published if (row["device"], row["threads"], row["network"], row["runtime"]) not in there]
    names = options.only or sorted({row["network"] for row in published})
    errors, inside = list[float](), 0
    for name in names[:1] if options.short else names:
        nodes, rest = measured(name)
        for row in published:
            if row["network"] == name:
                made = predicted(row, nodes, rest, this_machine(), device_of)
                append(options.out, COLUMNS, made)
                errors.append(abs(float(made["error"])))
                low, high = range_from(edge_errors(), row["device"], int(row["threads"]))
                inside += low <= float(made["published_ms"]) / float(made["predicted_ms"]) <= high
    print(f"median error {median(errors):.0%} of {len(errors)}, {inside} in the range")


def network(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A network and one input."""
    if name in TINY:
        make, shape = TINY[name]
        return make().eval(), (torch.randn(1, *shape),)
    if name in TIMM:
        made = _timm().create_model(TIMM[name], pretrained=False).eval()
        return made, (torch.randn(1, *made.default_cfg["input_size"]),)
    return models.build(name), (torch.randn(1, *models.model(name).input.shape),)


def measured(name: str) -> tuple[list[tuple[str, OnnxNode, float]], float]:
    """The layers of a network with their seconds here, and the seconds of the rest."""
    found = structures_of(*network(name))
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


def predicted(
    row: dict[str, str],
    nodes: Iterable[tuple[str, OnnxNode, float]],
    rest: float,
    here: Machine,
    device_of: Callable[[str], EdgeDevice] = edge_device,
) -> dict[str, Any]:
    """One published latency and its prediction."""
    nodes = list(nodes)
    found = on_device(nodes, rest, device_of(row["device"]), int(row["threads"]), here)
    published = float(row["mean_ms"]) / 1e3
    return {
        "device": row["device"],
        "threads": row["threads"],
        "network": row["network"],
        "source": row["runtime"],
        "published_ms": row["mean_ms"],
        "predicted_ms": f"{found.seconds * 1e3:.{1 if found.seconds > 0.01 else 3}f}",
        "error": f"{found.seconds / published - 1:.3f}",
        "here_ms": f"{(sum(took for _, _, took in nodes) + rest) * 1e3:.2f}",
        "here_gflop_per_s": f"{here.peak / 1e9:.0f}",
        "here_gb_per_s": f"{here.bandwidth / 1e9:.1f}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def errors_of(rows: Iterable[Mapping[str, Any]]) -> list[EdgeError]:
    """Return the errors of rows of results."""
    return [
        EdgeError(
            row["device"],
            int(row["threads"]),
            row["network"],
            row.get("source") or "ncnn",
            round(float(row["published_ms"]) / float(row["predicted_ms"]), 3),
        )
        for row in rows
    ]


def write_errors(rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the errors that the package reads, made from the rows of results."""
    lines = [
        "# Published latencies over those predicted for them (benchmarks/edge_latency.py --summary). The ranges of",
        "# predictions for a processor come from the rows of other processors. Sources: validation/edge/latencies.csv.",
        "",
        "errors = [",
    ]
    for each in errors_of(rows):
        name = f'device = "{each.device}", threads = {each.threads}, network = "{each.network}"'
        lines.append(f'  {{{name}, source = "{each.source}", ratio = {each.ratio:.3f}}},')
    ERRORS.write_text("\n".join([*lines, "]", ""]))
    edge_errors.cache_clear()


def summary(errors: Iterable[EdgeError]) -> str:
    """Errors by processor, then the share of rows in ranges made without their processor or their source."""
    errors = list(errors)
    lines = [
        "| processor | rows | sources | median error | published / predicted | in the range |",
        "|---|---|---|---|---|---|",
    ]
    held: list[bool] = []
    for device in dict.fromkeys(each.device for each in errors):
        own = [each for each in errors if each.device == device]
        inside = [low <= each.ratio <= high for each in own for low, high in [range_from(errors, device, each.threads)]]
        held += inside
        ratios, off = [each.ratio for each in own], median(abs(1 / each.ratio - 1) for each in own)
        sources = ", ".join(dict.fromkeys(each.source for each in own))
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"| {device} | {len(own)} | {sources} | {off:.0%} | {span} | {sum(inside)} |")
    by_source = []
    for source in dict.fromkeys(each.source for each in errors):
        rest = [each for each in errors if each.source != source]
        for each in (each for each in errors if each.source == source and rest):
            low, high = range_from(rest, each.device, each.threads)
            by_source.append(low <= each.ratio <= high)
    return "\n".join(
        [
            *lines,
            f"{sum(held)} of {len(held)} in ranges without rows of their processor, {sum(by_source)} in those without rows of",
            "their processor and their source",
        ]
    )


if __name__ == "__main__":
    main()
