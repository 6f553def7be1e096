"""Direct sparse convolution beside dense, layer by layer, as rows of a CSV file.

    python benchmarks/sparse_convolution.py --out RESULTS/sparse_convolution.csv

RESULTS is benchmarks/results. One row a layer and sparsity, one thread, random zeros. Five contenders take turns: the kernel,
the same in ONNX Runtime (paceline.SparseConv), dense in ONNX Runtime and in torch (oneDNN), and a dense layer in ONNX Runtime
that has as many weights as the sparse one, both widths rounded to 8. Times are medians of the turns. `least` is the shortest
turn: other work on the machine never makes it shorter, so crossings and predictions go by it. The roofline is measured before
the turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import append

from paceline.slimming.export.onnx_export import open_session
from paceline.slimming.export.sparse_onnx import DOMAIN
from paceline.slimming.latency.sparse_roofline import Advice, ConvShape, advised, dense_model
from paceline.slimming.methods.sparse_convolution import Rows, SparseWindow, kernel_of

CONTENDERS = ("kernel", "ort_sparse", "ort_dense", "onednn", "shrunk")
COLUMNS = (
    "layer",
    "weight",
    "image",
    "stride",
    "groups",
    "sparsity",
    "threads",
    "isa",
    "turns",
    *(f"{name}_ms" for name in CONTENDERS),
    *(f"{name}_least_ms" for name in CONTENDERS),
    "shrunk_weight",
    "slowdown",
    "predicted_ms",
    "predicted_gains_from",
    "predicted_saturates_at",
    "measured_gains_from",
    "note",
)
SPARSITIES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)


def layer(channels: int, out: int, size: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> ConvShape:
    """With padding that keeps the size at stride 1."""
    pad = kernel // 2
    window = SparseWindow((stride, stride), (pad, pad), (1, 1), groups)
    return ConvShape((out, channels // groups, kernel, kernel), window, (1, channels, size, size))


LAYERS = {
    "AlexNet conv2": layer(96, 256, 27, 5, groups=2),
    "AlexNet conv3": layer(256, 384, 13),
    "AlexNet conv4": layer(384, 384, 13, groups=2),
    "AlexNet conv5": layer(384, 256, 13, groups=2),
    "ResNet-18 layer1": layer(64, 64, 56),
    "ResNet-18 layer2.0": layer(64, 128, 56, stride=2),
    "ResNet-18 layer2": layer(128, 128, 28),
    "ResNet-18 layer3.0": layer(128, 256, 28, stride=2),
    "ResNet-18 layer3": layer(256, 256, 14),
    "ResNet-18 layer4.0": layer(256, 512, 14, stride=2),
    "ResNet-18 layer4": layer(512, 512, 7),
}


def main(arguments: list[str] | None = None) -> None:
    """Measure and add rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--sparsities", type=float, nargs="+", default=list(SPARSITIES))
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--short", action="store_true", help="a small layer, two sparsities, three turns")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    layers = {"small": layer(8, 16, 9)} if options.short else {name: LAYERS[name] for name in options.only}
    sparsities, turns = ([0.5, 0.9], 3) if options.short else (sorted(options.sparsities), options.turns)
    for name, shape in layers.items():
        for row in rows(name, shape, sparsities, turns):
            append(options.out, COLUMNS, {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()})


def rows(name: str, shape: ConvShape, sparsities: list[float], turns: int) -> list[dict[str, object]]:
    """Of one layer; prints them."""
    from paceline import _native

    advice = advised(shape)
    measured = [times(shape, sparsity, turns) for sparsity in sparsities]
    crossing = gains_from(sparsities, [least for _, least, _ in measured])
    found: list[dict[str, object]] = []
    for sparsity, (median, least, narrow) in zip(sparsities, measured, strict=True):
        found.append(
            {
                "layer": name,
                "weight": shown(shape.weight),
                "image": shown(shape.image),
                "stride": shape.window.stride[0],
                "groups": shape.window.groups,
                "sparsity": sparsity,
                "threads": 1,
                "isa": _native.isa(),
                "turns": turns,
                **{f"{each}_ms": seconds * 1e3 for each, seconds in median.items()},
                **{f"{each}_least_ms": seconds * 1e3 for each, seconds in least.items()},
                "shrunk_weight": shown(narrow),
                **predicted(advice, sparsity),
                "measured_gains_from": crossing,
                "note": f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
            }
        )
        gains = "  ".join(f"{each} {least[each] / least['ort_dense']:5.2f}" for each in CONTENDERS)
        print(f"{name:18}  {sparsity:4.2f}  of dense: {gains}  gains from {crossing:.2f}", flush=True)
    return found


def predicted(advice: Advice, sparsity: float) -> Mapping[str, object]:
    """The roofline's columns."""
    roof = advice.roof
    assert roof is not None
    return {
        "slowdown": roof.slowdown,
        "predicted_ms": roof.seconds(sparsity) * 1e3,
        "predicted_gains_from": roof.gains_from,
        "predicted_saturates_at": roof.saturates_at,
    }


def gains_from(sparsities: list[float], least: list[dict[str, float]]) -> float:
    """Where the kernel's time crosses dense, between two sparsities; the lowest measured where it is ahead there already."""
    gain = [each["kernel"] / each["ort_dense"] for each in least]
    behind = [place for place, ratio in enumerate(gain) if ratio > 1]
    if not behind:
        return sparsities[0]
    last = behind[-1]
    if last + 1 == len(gain):
        return 1.0
    return float(np.interp(-1, [-gain[last], -gain[last + 1]], sparsities[last : last + 2]))


def times(shape: ConvShape, sparsity: float, turns: int) -> tuple[dict[str, float], dict[str, float], tuple[int, ...]]:
    """Seconds of each contender, medians and least, and the shape of the shrunk layer's weights."""
    random = np.random.default_rng(1)
    image = random.standard_normal(shape.image, np.float32)
    weight = random.standard_normal(shape.weight, np.float32)
    weight.reshape(-1)[random.permutation(weight.size)[: round(sparsity * weight.size)]] = 0
    narrow = shrunk(shape, sparsity)
    runs = contenders(shape, narrow, image, weight)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(turns):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    median = {name: float(np.median(each)) for name, each in seconds.items()}
    return median, {name: min(each) for name, each in seconds.items()}, narrow.weight


def contenders(shape: ConvShape, narrow: ConvShape, image: Any, weight: Any) -> dict[str, Callable[[], Any]]:
    """One call of each. The dense ones multiply the same zeros."""
    window = shape.window
    kernel = kernel_of(weight, None, window)
    out = np.empty(shape.out, np.float32)
    dense, sparse, small = (
        open_session(model) for model in (dense_model(shape, weight), sparse_model(shape, weight), dense_model(narrow))
    )
    few = np.random.default_rng(2).standard_normal(narrow.image, np.float32)
    x, w, b = torch.from_numpy(image), torch.from_numpy(weight), torch.zeros(len(weight))
    settings = (window.stride, window.padding, window.dilation, window.groups)
    expected = dense.run(None, {"x": image})[0]
    kernel.run(image, out, 1)
    for found in (out, sparse.run(None, {"x": image})[0]):
        assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
    return {
        "kernel": lambda: kernel.run(image, out, 1),
        "ort_sparse": lambda: sparse.run(None, {"x": image}),
        "ort_dense": lambda: dense.run(None, {"x": image}),
        "onednn": lambda: torch.conv2d(x, w, b, *settings),
        "shrunk": lambda: small.run(None, {"x": few}),
    }


def shrunk(shape: ConvShape, sparsity: float) -> ConvShape:
    """As many weights, dense: both widths by the same factor, to the nearest 8."""
    factor, groups = sqrt(1 - sparsity), shape.window.groups
    out, entering = (max(8, round(width * factor / 8) * 8) for width in (shape.weight[0] // groups, shape.weight[1]))
    image = (shape.image[0], entering * groups, *shape.image[2:])
    return ConvShape((out * groups, entering, *shape.weight[2:]), shape.window, image)


def sparse_model(shape: ConvShape, weight: Any) -> Any:
    """One node of the operator."""
    from onnx import TensorProto, helper, numpy_helper

    window = shape.window
    held = {**Rows.of(weight)._asdict(), "bias": np.zeros(len(weight), np.float32)}
    pads: dict[str, Any] = {"strides": window.stride, "pads": window.padding, "dilations": window.dilation}
    counts = {"group": window.groups, "channels": shape.image[1], "kernel_shape": shape.weight[2:], "relu": 0}
    node = helper.make_node("SparseConv", ["x", *held], ["y"], domain=DOMAIN, **pads, **counts)
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape.image)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(each, name) for name, each in held.items()]
    graph = helper.make_graph([node], "sparse", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)], ir_version=9)


def shown(shape: tuple[int, ...]) -> str:
    """As 64x3x3x3."""
    assert prod(shape)
    return "x".join(map(str, shape))


if __name__ == "__main__":
    main()
