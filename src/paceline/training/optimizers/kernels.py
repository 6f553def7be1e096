"""Kernels for a tensor: C++ on the CPU, Triton on NVIDIA GPUs; torch's foreach functions serve everything else."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch

from paceline.training.optimizers import native


@cache
def gpu() -> Any:
    """The GPU's kernels; None where there is no CUDA device or no Triton."""
    try:
        return importlib.import_module("paceline.training.optimizers.gpu") if torch.cuda.is_available() else None
    except ImportError:
        return None


def callable_now() -> list[Any]:
    """Modules of kernels that can be called here: none while torch traces the step, and not the GPU's in a CUDA graph, whose
    replays would read the addresses of this step's gradients."""
    if torch.compiler.is_compiling():
        return []
    modules = [native] if native.built() else []
    if gpu() is not None and not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        modules.append(gpu())
    return modules
