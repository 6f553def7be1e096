"""Kernels of attention: the devices that run each, the default choice, and their speed.

``sdpa`` is PyTorch's ``scaled_dot_product_attention``, which chooses by device, precision and release. Sources: the notes of
PyTorch 2.0 (March 2023: the first FlashAttention, and a memory-efficient kernel), of 2.2 (January 2024: FlashAttention-2);
pytorch/pytorch#138522 (October 2024: cuDNN's kernel, first on Hopper in 2.5.0, runs on demand from 2.5.1 on), and
``check_prefer_cudnn_attention`` in ``sdp_utils.cpp`` (2.10; compute capability 9.0 and 10.x with a cuDNN above 9.15.0, which
the wheels of 2.11, March 2026, have).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.constants import Efficiency, assumed
from paceline.errors import UserError, check_name
from paceline.hardware.device import Device
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES

KERNELS = ("sdpa", "fa2", "cudnn", "fa3", "triton", "eager")
"""Names of kernels: PyTorch's choice, FlashAttention-2, cuDNN's, FlashAttention-3, the first FlashAttention in Triton, and
products and softmax that write the scores to memory."""
_EFFICIENT, _FIRST, _FUSED = "efficient", "fa1", "fused"
"""Other choices of ``sdpa``: a memory-efficient kernel, the first FlashAttention, and the fused kernel of devices that are no
GPUs."""
_AMPERE_ON = ("Ampere GA100", "Ampere GA10x", "Ada", "Hopper", "Blackwell")
_CDNA = ("CDNA 2", "CDNA 3", "CDNA 4")
_RUNS_ON = {"fa2": (*_AMPERE_ON, *_CDNA), "cudnn": _AMPERE_ON, "fa3": ("Hopper",), "triton": (*_AMPERE_ON, *_CDNA)}
"""Architectures that each kernel was written for: the README of flash-attention (2.x: Ampere and later, MI200 and later; 3:
H100) and NVIDIA's cuDNN frontend (scaled dot product attention: compute capability 8.0 and later). They compute in 16 bits."""
_SDPA_SINCE, _FA2_SINCE, _CUDNN_SINCE = 2023.2, 2024.1, 2026.2
"""PyTorch 2.0, 2.2 and 2.11."""
_FUSED_SINCE = 2021.5
"""MLPerf Training v1.0. Before it NVIDIA's BERT multiplied queries by keys and scores by values apart (training_results_v0.7,
NVIDIA, bert, ``bmm1.py``, ``bmm2.py``)."""


_SINCE = {"fa2": 2023.5, "cudnn": _FUSED_SINCE, "fa3": 2024.5, "triton": 2022.8}
"""Release date of each kernel: FlashAttention-2 (arXiv:2307.08691, July 2023), NVIDIA's fused kernels, FlashAttention-3
(arXiv:2407.08608, July 2024), and ``flash_attn_triton.py`` of flash-attention 0.2 (autumn of 2022)."""
_USUAL_WIDTH = 128.0
"""Width of the heads that the shares of kernels were measured with."""
_TITLES = {
    _EFFICIENT: "the memory-efficient kernel of sdpa",
    _FIRST: "the first FlashAttention",
    _FUSED: "a fused kernel",
}


def usual(level: str, year: float = 0.0) -> str:
    """Return the usual kernel of software of a level and year (0: the newest).

    Framework code runs ``sdpa``. Benchmark submissions run cuDNN's kernel, and ``eager`` before fused kernels existed.
    """
    if level == "ordinary":
        return "sdpa"
    return "eager" if 0 < year < _FUSED_SINCE else "cudnn"


def chosen(e: Efficiency) -> str:
    """Return the kernel that the constants name, from ``KERNELS``, else the usual one."""
    return e.attention_kernel or usual(e.level, e.year)


def running(device: Device, precision: str, e: Efficiency) -> str:
    """Return the kernel that runs on the device: the chosen one, or the choice of ``sdpa``."""
    kernel = chosen(e)
    if kernel != "sdpa":
        return kernel
    if device.kind != "gpu":
        return _FUSED
    kernels = family(device)
    if kernels not in _RUNS_ON["fa2"] or not _narrow(precision):
        return _EFFICIENT
    if kernels in ("Hopper", "Blackwell") and not 0 < e.year < _CUDNN_SINCE:
        return "cudnn"
    return _FIRST if 0 < e.year < _FA2_SINCE else "fa2"


def share(device: Device, precision: str, e: Efficiency) -> float:
    """Return the kernel's rate as a share of the best matrix product, relative to FlashAttention-2 on an A100."""
    kernel = running(device, precision, e)
    shares: Mapping[str, float] = assumed("attention_kernels").get(family(device), {})
    if kernel in (_FIRST, "triton"):
        of_fa2: float = assumed("attention_triton" if kernel == "triton" else "attention_first")
        return shares.get("fa2", 1.0) * of_fa2
    return float(assumed("attention_first")) if kernel == _EFFICIENT else shares.get(kernel, 1.0)


def width_share(device: Device, width: Array, backward: Bools) -> Array:
    """Return the rate of heads of a ``width`` relative to heads of 128, (rows,); 1 for wider ones.

    The exponential of a score is shared by two products as long as the head is wide, by five in the backward pass. Part of it
    is hidden behind them (Shah et al. 2024, FlashAttention-3, arXiv:2407.08608, section 3). The time of a score is taken to be
    the sum of both.
    """
    exponential = assumed("exponential_width").get(family(device), 0.0) * np.where(backward, 2 / 5, 1.0)
    narrow = np.clip(width, 1.0, _USUAL_WIDTH)
    share: Array = narrow / (narrow + exponential) * (_USUAL_WIDTH + exponential) / _USUAL_WIDTH
    return share


def title(kernel: str) -> str:
    """Return the display name of a kernel. Kernels that only ``sdpa`` selects cannot be requested by name."""
    return _TITLES.get(kernel, kernel)


def kernels_on(device: Device, precision: str, year: float = 0.0) -> tuple[str, ...]:
    """Return the names of ``KERNELS`` that run on a device, in a precision and in software of a year (0: the newest)."""

    def runs(kernel: str) -> bool:
        if kernel in _RUNS_ON:
            return family(device) in _RUNS_ON[kernel] and _narrow(precision) and not 0 < year < _SINCE[kernel]
        return kernel != "sdpa" or not 0 < year < _SDPA_SINCE

    return tuple(filter(runs, KERNELS))


def check_attention(device: Device, kernel: str, precision: str = "bf16", year: float = 0.0) -> None:
    """Raise UserError if a requested kernel does not exist, or does not run on the device, in the precision or in software of
    that year (0: the newest)."""
    check_name("attention kernel", kernel, KERNELS)
    if kernel == "sdpa" and 0 < year < _SDPA_SINCE:
        raise UserError(
            f"attention kernel sdpa in software of {year:g}: PyTorch has it since 2.0, of {_SDPA_SINCE:g}",
            "give eager, or leave it out",
        )
    if kernel not in _RUNS_ON:
        return
    if family(device) not in _RUNS_ON[kernel]:
        runs = " or ".join(kernels_on(device, precision, year))
        raise UserError(f"attention kernel {kernel} does not run on {device.name}", f"give {runs}, or leave it out")
    if 0 < year < _SINCE[kernel]:
        runs = " or ".join(kernels_on(device, precision, year))
        raise UserError(
            f"attention kernel {kernel} in software of {year:g}: it exists since {_SINCE[kernel]:g}",
            f"give a year from {_SINCE[kernel]:g} on, or {runs}, or leave it out",
        )
    if not _narrow(precision):
        raise UserError(f"attention kernel {kernel} computes in 16 bits, not in {precision}", "give sdpa or eager, or bf16")


def family(device: Device) -> str:
    """Return the family of architectures whose kernels a device runs.

    Blackwell boards without NVLink (compute capability 12.0) have matrix instructions like Ada's. They lack those of 10.0,
    which its kernels use (CUDA, PTX ISA, tcgen05).
    """
    bare = device.architecture == "Blackwell" and not device.link.startswith("NVLink")
    return "Ada" if bare else device.architecture


def _narrow(precision: str) -> bool:
    """Return whether attention computes in 16 bits. It does so under a recipe."""
    return precision in RECIPES or BYTES_PER_ELEMENT[precision] == 2
