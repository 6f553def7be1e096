"""Kernels of convolutions by memory format: dense, grouped and depthwise.

Matrix units read channels last. cuDNN transposes contiguous tensors into that order and back in kernels of their own (NVIDIA,
Convolutional Layers User's Guide, section 2.1). A depthwise convolution runs on ordinary cores, and so do groups of other widths
than those of the kernels of matrix units (cuDNN 7.6.2 and 8 release notes: 4, 8, 16 and 32 channels).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency, assumed
from paceline.hardware.device import Device
from paceline.prediction.passes.operation_table import CONV, OperationTable
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_FIT: Mapping[str, float] = assumed("convolutions")
_MULTIPLE = 8
"""Multiple of channels that kernels of matrix units read in 16 bits without padding."""
_WIDTHS = (4, 8, 16, 32)
"""Channels of a group for which such kernels exist."""
_IMAGE = 4
"""Most channels of an image, which is padded."""


@dataclass(frozen=True, slots=True)
class ConvolutionSeconds:
    """Seconds of computing and of streaming of each row of a table, whichever is slower, and of transposing, (rows,)."""

    flops: Array
    streamed: Array
    transposed: Array


def convolution_seconds(
    table: OperationTable,
    work: Array,
    flops: Array,
    streamed: Array,
    device: Device,
    e: Efficiency,
    *,
    matrix: bool,
    channels_last: bool,
) -> ConvolutionSeconds:
    """Return the seconds of a table's rows, of which those of convolutions depend on their kernels.

    Args:
        work: FLOPs, (rows,).
        flops, streamed: seconds of each row by the best dense product on the device, (rows,).
        matrix: whether the precision runs on matrix units.
        channels_last: the memory format.
    """
    nothing = np.zeros_like(flops)
    conv = table.kind == CONV
    if not conv.any() or "fp32" not in device.peak_flops:
        return ConvolutionSeconds(flops, streamed, nothing)
    entering, leaving, groups = _channels(table)
    width = np.maximum(entering, leaving)
    depthwise = conv & (groups > 1) & (width <= 1)
    cores = device.peak_flops["fp32"].value
    rate = cores * _FIT["depthwise_channels_last" if channels_last else "depthwise_contiguous"]
    flops = np.where(depthwise, work / rate, flops)
    if not matrix:
        return ConvolutionSeconds(flops, streamed, nothing)
    grouped, dense = conv & (groups > 1) & ~depthwise, conv & (groups <= 1)
    padded = (entering % _MULTIPLE > 0) & (entering > _IMAGE) | (leaving % _MULTIPLE > 0)
    plain = (dense & padded) | (conv & ~depthwise & (not channels_last))
    if e.level == "ordinary":
        flops = np.where(dense | grouped, flops / _FIT["ordinary"], flops)
    flops = np.where(grouped & plain, flops / _FIT["grouped"], flops)
    ordered = grouped & ~plain
    has_kernel = np.isin(width, _WIDTHS) & (groups % _MULTIPLE == 0)
    on_cores = work / (cores * _FIT["grouped_on_cores"] * (np.maximum(width, 1) / 32) ** _FIT["grouped_exponent"])
    flops = np.where(ordered, np.where(has_kernel, 0.0, on_cores), flops)
    return ConvolutionSeconds(flops, streamed, np.where(plain, _FIT["transposed"] * streamed, 0.0))


def _channels(table: OperationTable) -> tuple[Array, Array, Array]:
    """Return channels of a group that enter and leave a convolution, and the number of groups, (rows,).

    In the gradient of a weight they are the rows and the columns of the product, without the window.
    """
    m, n, k, groups = table.sizes.T
    weight = table.grows[:, 2] > 0
    window = np.maximum(table.window, 1.0)
    entering = np.where(weight, n / window, k / window)
    return np.maximum(np.round(entering), 1.0), np.round(np.where(weight, m, n)), groups


@once
def keeps_channels_last(workload: Workload) -> bool:
    """Return whether activations stay channels last between convolutions.

    PyTorch's batch normalisation keeps the order. Other normalisations return contiguous tensors (PyTorch, ATen,
    ``group_norm.cpp``; timm's ``LayerNorm2d`` permutes), which convolutions transpose again.
    """
    moved: dict[bool, float] = {True: 0.0, False: 0.0}
    for layer in workload.layers:
        if "Norm" in layer.kind:
            moved["BatchNorm" in layer.kind] += sum(o.bytes for o in layer.operations)
    return moved[True] >= moved[False]
