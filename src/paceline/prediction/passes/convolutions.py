"""Kernels of convolutions by memory format: dense, grouped and depthwise.

Matrix units read channels last. cuDNN transposes contiguous tensors of 16 bits into that order and back in separate kernels
(NVIDIA, Convolutional Layers User's Guide, section 2.1). For TF32 it has kernels of both orders. Depthwise convolutions run on
ordinary cores. Groups without a kernel of their width for matrix units run there too (cuDNN 7.6.2 and 8 release notes: 4, 8, 16
and 32 channels).

On ordinary cores convolutions of 3x3 run as Winograd's products (Lavin and Gray 2016, Fast Algorithms for Convolutional Neural
Networks, arXiv:1509.09308). Blocks of 4x4 results save three of four multiplications. Their transforms write and read 36
numbers for each 16 of the images and of the results, so networks of few channels gain little.

On Hopper convolutions of volumes run kernels of Ampere's instructions. The first with Hopper's own came with CUTLASS 3.5 of
April 2024 (release notes, "Implicit GEMM Convolutions targeting Hopper SM90A via WGMMA"), later than MLPerf's U-Nets. This was
chosen in sight of their rows, which were 23 % fast on H100 and 4 to 13 % slow on A100.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency, assumed
from paceline.hardware.device import Device
from paceline.prediction.passes.operation_table import CONV, OperationTable
from paceline.strategy.memory_format import CHANNELS_LAST, CONTIGUOUS, usual_memory_format
from paceline.workload.prepared import once
from paceline.workload.table import Workload

_FIT: Mapping[str, float] = assumed("convolutions")
_MULTIPLE = 8
"""Multiple of channels that kernels of matrix units read in 16 bits without padding."""
_WIDTHS = (4, 8, 16, 32)
"""Channels of a group for which such kernels exist."""
_NORM = re.compile("(Batch|Layer|Group|Instance|Evo)Norm")
_WIDEST = 49
"""Positions of the widest window of which depthwise kernels in channels last exist."""
_WINOGRAD = 9
"""Positions of the window of a convolution that Winograd's algorithm speeds up."""
_TRANSFORMED = 4 * 2 * 36 / 16
"""Bytes that transforms write and read for each number of the images and of the results, in fp32."""
_IMAGE = 4
"""Most channels of an image, which is padded."""
_VOLUME = 27
"""Positions of the window of a convolution of 3x3x3."""
_AMPERE_INSTRUCTIONS_ON = "Hopper"
"""Architecture whose convolutions of volumes run kernels of Ampere's instructions."""
_AMPERE_INSTRUCTIONS: float = assumed("ampere_instructions")
"""Rate of these instructions over that of Hopper's own."""


@dataclass(frozen=True, slots=True)
class ConvolutionSeconds:
    """Seconds of computing and of streaming of each row of a table, whichever is slower, and of copying, (rows,)."""

    flops: Array
    streamed: Array
    copied: Array


def convolution_seconds(
    table: OperationTable,
    work: Array,
    flops: Array,
    streamed: Array,
    device: Device,
    e: Efficiency,
    *,
    matrix: bool,
    narrow: bool,
    channels_last: bool,
) -> ConvolutionSeconds:
    """Return the seconds of a table's rows, of which those of convolutions depend on their kernels.

    Args:
        work: FLOPs, (rows,).
        flops, streamed: seconds of each row by the device's dense products in the usual memory format of the software, (rows,).
        matrix: whether the precision runs on matrix units. ``narrow``: whether its numbers have 16 bits or fewer.
        channels_last: the memory format.
    """
    nothing = np.zeros_like(flops)
    conv = table.kind == CONV
    if not conv.any() or "fp32" not in device.peak_flops:
        return ConvolutionSeconds(flops, streamed, nothing)
    cores = device.peak_flops["fp32"].value
    entering, leaving, groups = _channels(table)
    width = np.maximum(entering, leaving)
    depthwise = conv & (groups > 1) & (width <= 1)
    share = _FIT["depthwise_channels_last" if channels_last else "depthwise_contiguous"]
    flops = np.where(depthwise, work / (cores * share), flops)
    if not matrix:
        return ConvolutionSeconds(flops, streamed, nothing)
    if device.architecture == _AMPERE_INSTRUCTIONS_ON:
        flops = np.where(conv & (table.window == _VOLUME), flops / _AMPERE_INSTRUCTIONS, flops)
    dense, grouped = conv & (groups <= 1), conv & (groups > 1) & ~depthwise
    ordinary = e.level == "ordinary"
    if not channels_last:
        transposed = dense & narrow
        copies = np.where(grouped, _FIT["grouped_copies"], np.where(transposed, _FIT["dense_copies"], 0.0))
        return ConvolutionSeconds(np.where(transposed & ordinary, flops / _FIT["dense"], flops), streamed, copies * streamed)
    if not ordinary:  # its kernels pad channels and have groups of every width
        return ConvolutionSeconds(flops, streamed, nothing)
    padded = ((entering % _MULTIPLE > 0) & (entering > _IMAGE)) | (leaving % _MULTIPLE > 0)
    flops = np.where(dense & ~padded, flops / _FIT["dense"], flops)
    on_cores = work / (cores * _FIT["grouped_on_cores"] * (width / _WIDTHS[-1]) ** _FIT["grouped_exponent"])
    has_kernel = np.isin(width, _WIDTHS) & (groups % _MULTIPLE == 0)
    grouped = grouped | (depthwise & (table.window > _WIDEST))  # groups of one channel
    return ConvolutionSeconds(np.where(grouped, np.where(has_kernel, 0.0, on_cores), flops), streamed, nothing)


def winograd_gain(table: OperationTable, rate: float, bandwidth: float, saved: float) -> Array:
    """Return how many times as fast a row of ordinary cores runs by Winograd's algorithm, (rows,); 1 without it.

    Args:
        rate: FLOP/s of convolutions without it. ``bandwidth``: bytes/s.
        saved: FLOPs of a convolution / multiplications really done.
    """
    entering, leaving, groups = _channels(table)
    fits = (table.kind == CONV) & (table.window == _WINOGRAD) & (groups <= 1) & (leaving > 0)
    transforms = _TRANSFORMED * (1 / entering + 1 / np.maximum(leaving, 1.0)) * rate / (2 * _WINOGRAD * bandwidth)
    return np.where(fits, np.maximum(1 / (1 / saved + transforms), 1.0), 1.0)


def _channels(table: OperationTable) -> tuple[Array, Array, Array]:
    """Return channels of a group that enter and leave a convolution, and the number of groups, (rows,).

    In the gradient of a weight they are the rows and the columns of the product, without the window.
    """
    m, n, k, groups = table.sizes.T
    weight = table.grows[:, 2] > 0
    window = np.maximum(table.window, 1.0)
    entering = np.where(weight, n / window, k / window)
    return np.maximum(np.round(entering), 1.0), np.round(np.where(weight, m, n)), groups


def is_channels_last(workload: Workload, memory_format: str, level: str) -> bool:
    """Return whether convolutions of a network run in channels last.

    Args:
        memory_format: that of images; empty: the usual one of the software.
        level: level of the software. Tuned software has normalisations of every format.
    """
    own = _kept_format(workload) if level == "ordinary" else ""
    return (own or memory_format or usual_memory_format(level)) == CHANNELS_LAST


@once
def _kept_format(workload: Workload) -> str:
    """Return the memory format of activations whatever that of the images is; empty if they keep it.

    The normalisation that moves the most bytes decides. PyTorch's batch normalisation keeps the format. A layer normalisation
    of channels leaves them last (``LayerNorm`` on permuted images, as in ConvNeXt). Others return contiguous tensors (PyTorch,
    ATen, ``group_norm.cpp``).
    """
    moved: dict[str, float] = {"": 0.0, CHANNELS_LAST: 0.0, CONTIGUOUS: 0.0}
    for layer in workload.layers:
        if _NORM.search(layer.kind):
            own = "" if "BatchNorm" in layer.kind else CHANNELS_LAST if layer.kind == "LayerNorm" else CONTIGUOUS
            moved[own] += sum(o.bytes for o in layer.operations)
    return max(moved, key=lambda name: moved[name])
