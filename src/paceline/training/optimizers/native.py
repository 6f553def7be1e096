"""Both passes by the C++ kernels (``csrc/optimizers.cpp``), for dense fp32 tensors on the CPU, with one call per pass."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.training.optimizers.bundle import Bundle, dense

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]


def built() -> bool:
    """Return whether the extension was built."""
    return _native is not None


def serves(weight: Tensor, words: list[Tensor]) -> bool:
    """Return whether the kernels support this tensor and its state."""
    return weight.is_cpu and weight.dtype == torch.float32 and dense(weight, words)


def gradient_squares(bundle: Bundle) -> Tensor:
    """Return sums of squares of the gradients, fp64, shape (n,)."""
    sums = torch.empty(len(bundle.weights), dtype=torch.float64)
    _native.squares(_addresses(bundle.gradients), _sizes(bundle), sums.numpy(), torch.get_num_threads())
    return sums


def lars_sums(bundle: Bundle, joint: bool) -> Tensor:
    """Run pass 1 of LARS: squares of w and of g, or with ``joint`` of g + decay * w; fp64, shape (2, n)."""
    sums = torch.empty(2, len(bundle.weights), dtype=torch.float64)
    _native.lars_sums(
        _addresses(bundle.weights),
        _addresses(bundle.gradients),
        _sizes(bundle),
        float(bundle.scale),
        bundle.decay if joint else 0.0,
        sums.numpy(),
        torch.get_num_threads(),
    )
    return sums


def lars_step(bundle: Bundle, gain: Tensor, rate: Tensor, finite: Tensor) -> None:
    """Run pass 2 of LARS unless ``finite`` is false: v <- momentum * v + gain * (g + decay * w); w <- w - rate * v."""
    if not finite:
        return
    _native.lars_step(
        _addresses(bundle.weights),
        _addresses(bundle.gradients),
        _addresses(bundle.words[0]),
        _sizes(bundle),
        gain.to(torch.float32).numpy(),
        float(rate),
        float(bundle.scale),
        bundle.decay,
        bundle.group["momentum"],
        bundle.group["nesterov"],
        torch.get_num_threads(),
    )


def lamb_sums(bundle: Bundle) -> Tensor:
    """Run pass 1 of LAMB: squares of w, of the update and of g; fp64, shape (3, n)."""
    sums = torch.empty(3, len(bundle.weights), dtype=torch.float64)
    _native.lamb_sums(*_lamb(bundle), sums.numpy(), torch.get_num_threads())
    return sums


def lamb_step(bundle: Bundle, rate: Tensor, finite: Tensor) -> None:
    """Run pass 2 of LAMB unless ``finite`` is false: new moments; w <- w - rate * u."""
    if finite:
        _native.lamb_step(*_lamb(bundle), rate.to(torch.float32).numpy(), torch.get_num_threads())


def _lamb(bundle: Bundle) -> tuple[object, ...]:
    first, second = (correction.to(torch.float32).numpy() for correction in bundle.corrections)
    return (
        _addresses(bundle.weights),
        _addresses(bundle.gradients),
        _addresses(bundle.words[0]),
        _addresses(bundle.words[1]),
        _sizes(bundle),
        first,
        second,
        *bundle.group["betas"],
        bundle.group["eps"],
        bundle.decay,
        float(bundle.scale),
    )


def _addresses(tensors: list[Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _sizes(bundle: Bundle) -> list[int]:
    return [weight.numel() for weight in bundle.weights]
