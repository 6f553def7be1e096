"""Choice of kernels for a tensor: C++ on the CPU, Triton on NVIDIA GPUs, or else torch's foreach functions."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

from paceline.training.optimizers import native


@cache
def gpu() -> Any:
    """Return the GPU's kernels; None without a CUDA device or Triton."""
    try:
        return importlib.import_module("paceline.training.optimizers.gpu") if torch.cuda.is_available() else None
    except ImportError:
        return None


def callable_now() -> list[Any]:
    """Return the kernel modules that can be called now: none while torch traces the step, and not the GPU's in a CUDA graph,
    whose replays would read the addresses of this step's gradients.
    """
    if torch.compiler.is_compiling():
        return []
    modules = [native] if native.built() else []
    if gpu() is not None and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        modules.append(gpu())
    return modules
