"""Seconds of layers, optimizer and codec on one device, by roofline.

A kernel takes ``max(FLOPs / achievable rate, bytes / achievable bandwidth)`` (Williams, Waterman, Patterson 2009,
Roofline, CACM 52(4)) plus the time to launch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from paceline.hardware.device import BYTES_PER_ELEMENT, Device
from paceline.prediction.efficiency import Efficiency
from paceline.strategy.optimizer import Optimizer
from paceline.workload.layers import Workload

Array = NDArray[np.float64]

_COLUMNS = attrgetter(
    "flops_forward",
    "flops_backward",
    "bytes_forward",
    "bytes_backward",
    "fixed_bytes_forward",
    "fixed_bytes_backward",
    "ops_forward",
    "ops_backward",
)


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass does, per layer, for one micro batch: FLOPs, bytes at the precision in use, operations.

    ``conv3x3`` marks the layers with a 3x3 kernel, for which libraries know an algorithm of fewer multiplications.
    """

    flops: Array
    bytes: Array
    ops: Array
    conv3x3: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds per layer by what they wait for; ``total`` is their sum.

    ``flops`` and ``bytes`` never both: a kernel waits for the slower of the two.
    """

    flops: Array
    bytes: Array
    launch: Array

    @property
    def total(self) -> Array:
        """Seconds per layer."""
        return self.flops + self.bytes + self.launch

    def scaled(self, factor: float) -> Seconds:
        """All of it times ``factor``."""
        return Seconds(self.flops * factor, self.bytes * factor, self.launch * factor)


def work(workload: Workload, micro_batch_size: int, precision: str) -> tuple[Work, Work]:
    """Forward and backward work of each layer, in forward order."""
    table = np.array([_COLUMNS(layer) for layer in workload.layers], dtype=np.float64).reshape(-1, 8)
    scale = BYTES_PER_ELEMENT[precision] / BYTES_PER_ELEMENT["fp32"]
    flops = table[:, 0:2] * micro_batch_size
    moved = (table[:, 2:4] * micro_batch_size + table[:, 4:6]) * scale
    conv3x3 = np.zeros(len(table), dtype=np.bool_)
    conv3x3[[p.layer for p in workload.parameters if len(p.shape) == 4 and p.shape[2:] == (3, 3)]] = True
    forward, backward = (Work(flops[:, i], moved[:, i], table[:, 6 + i], conv3x3) for i in (0, 1))
    return forward, backward


def peak_rate(device: Device, precision: str, efficiency: Efficiency) -> float:
    """FLOP/s of the best dense matmul: measured where the catalogue has it, else a share of the datasheet's peak.

    Raises:
        UserError: the device does not have that precision.
    """
    peak = device.peak(precision).value
    measured = device.matmul_flops.get(precision)
    return measured.value if measured else peak * efficiency.matmul_share


def on_matrix_units(device: Device, precision: str) -> bool:
    """Whether ``precision`` runs on matrix units: it is more than twice as fast as fp32, or there is no fp32."""
    full = device.peak_flops.get("fp32")
    return full is None or device.peak(precision).value > 2.1 * full.value


def memory_rate(device: Device, efficiency: Efficiency) -> float:
    """Bytes/s that a streaming kernel gets."""
    return device.memory_bandwidth.value * efficiency.memory_share


def layer_seconds(todo: Work, device: Device, precision: str, efficiency: Efficiency) -> Seconds:
    """Seconds of each layer's pass on ``device``. Raises UserError for a precision it does not have."""
    rate = peak_rate(device, precision, efficiency)
    half = efficiency.half_s * rate * todo.ops  # FLOPs at which the kernels of a layer reach half their efficiency
    if on_matrix_units(device, precision):
        best = np.full_like(todo.flops, efficiency.matrix_share)
    else:
        best = efficiency.vector_share * np.where(todo.conv3x3, efficiency.winograd, 1.0)
    share = best * todo.flops / np.maximum(todo.flops + half, 1.0)
    flops = np.divide(todo.flops, rate * share, out=np.zeros_like(todo.flops), where=todo.flops > 0)
    moved = todo.bytes / memory_rate(device, efficiency)
    bound = flops >= moved
    zero = np.zeros_like(flops)
    launch = todo.ops * efficiency.launch_s[device.kind]
    return Seconds(np.where(bound, flops, zero), np.where(bound, zero, moved), launch).scaled(efficiency.time_factor)


def optimizer_seconds(
    optimizer: Optimizer, num_parameters: int, num_tensors: int, device: Device, efficiency: Efficiency
) -> tuple[float, float]:
    """Seconds of one update that go to memory (fp32 words) and to launches (unfused, per tensor)."""
    memory = 4 * optimizer.moved_words * num_parameters / memory_rate(device, efficiency)
    launch = optimizer.ops * num_tensors * efficiency.launch_s[device.kind]
    return memory * efficiency.time_factor, launch * efficiency.time_factor
