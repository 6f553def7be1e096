"""Prediction of a network's latency on another processor, by a roofline from published figures for each layer.

A layer takes at least its multiply-adds at the processor's peak, and its bytes at the memory's rate (the roofline, Williams et
al., CACM 2009). Each layer is assumed to reach the same share of the roofline there as here, with a peak and a rate measured
here. The range comes from published latencies of other processors (``edge_errors``). Only a run on the device is a measurement.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from paceline.hardware.edge import EdgeDevice
from paceline.slimming.latency.edge_errors import edge_errors, range_from
from paceline.slimming.latency.layer_times import REST, LayerTimes
from paceline.slimming.latency.onnx_nodes import OnnxNode, alone, made, numbers

SIDE = 768
COPIED = 2**26


@dataclass(frozen=True, slots=True)
class Machine:
    """FLOP/s of fp32 on one core, and bytes/s of the memory."""

    peak: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class EdgeTimes:
    """Predicted seconds on another device.

    Attributes:
        by_layer: seconds of each operation and of the rest. ``low_s``, ``high_s``: range of the sum; it need not hold the sum.
        note: basis of the prediction.
    """

    by_layer: dict[str, float]
    low_s: float
    high_s: float
    note: str

    @property
    def seconds(self) -> float:
        """Seconds of the whole network."""
        return sum(self.by_layer.values())


@cache
def this_machine() -> Machine:
    """Measure one core's peak, by a square matrix product on ONNX Runtime, and the rate of a copy beyond the caches."""
    square = {"w": numbers(SIDE, SIDE)}
    took = alone([made("MatMul", "x", "w")], square, {"x": numbers(SIDE, SIDE)})
    held, copy = np.ones(COPIED // 4, np.float32), np.zeros(COPIED // 4, np.float32)
    passes = []
    for _ in range(6):
        start = time.thread_time()
        np.copyto(copy, held)
        passes.append(time.thread_time() - start)
    return Machine(2 * SIDE**3 / took, 2 * COPIED / min(passes))


def edge_times(times: LayerTimes, device: EdgeDevice, removed: Collection[int] = (), threads: int = 1) -> EdgeTimes:
    """Predict the latency of a network without some structures on another processor.

    Args:
        times: measured here with one thread. ``threads``: threads of the other processor, up to its large cores.
    """
    return on_device(times.nodes(removed), times.by_layer(removed)[REST], device, threads)


def on_device(
    nodes: Iterable[tuple[str, OnnxNode, float]],
    rest_s: float,
    device: EdgeDevice,
    threads: int = 1,
    here: Machine | None = None,
) -> EdgeTimes:
    """Predict the latency of operations on another processor.

    Args:
        nodes: name, sizes and seconds on one core here. ``rest_s``: the remaining seconds here.
        here: figures of this machine, if known.
    """
    here = here or this_machine()
    there = Machine(device.peak(threads), device.bandwidth.value)
    by_layer: dict[str, float] = {}
    for name, node, took in nodes:
        slower = max(took / _least(node, here), 1.0)
        by_layer[name] = by_layer.get(name, 0.0) + slower * _least(node, there)
    by_layer[REST] = rest_s * here.peak / there.peak
    whole = sum(by_layer.values())
    note = f"predicted from published figures of {device.name} for {min(threads, device.cores)} of its cores, not measured"
    low, high = range_from(edge_errors(), device.name, threads)
    return EdgeTimes(by_layer, low * whole, high * whole, note)


def _least(node: OnnxNode, machine: Machine) -> float:
    return max(2 * node.products / machine.peak, node.bytes / machine.bandwidth)
