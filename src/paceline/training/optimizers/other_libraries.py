"""Comparisons for ``bench``: LARS and LAMB of other libraries, and plain ones in torch's foreach functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.training.optimizers.bundle import listed
from paceline.training.optimizers.published_variants import trust_ratio

OptimizerStep = Callable[[], object]

RATE, LARS_DECAY, LAMB_DECAY, MOMENTUM, COEFFICIENT, EPS = 1e-3, 1e-4, 1e-2, 0.9, 1e-3, 1e-6
BETA1, BETA2 = 0.9, 0.999

_LARS: Mapping[str, Any] = {"lr": RATE, "momentum": MOMENTUM, "weight_decay": LARS_DECAY}
_LAMB: Mapping[str, Any] = {"lr": RATE, "weight_decay": LAMB_DECAY}
_COUPLED = {"weight_decouple": False}  # decay inside the ratio, as in the paper; the default leaves it out
PEERS: Mapping[str, Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "lars": {
        "torch_optimizer": ("torch_optimizer", "LARS", {**_LARS, "trust_coefficient": COEFFICIENT}),
        "pytorch_optimizer": ("pytorch_optimizer", "LARS", {**_LARS, "foreach": False}),
        "pytorch_optimizer foreach": ("pytorch_optimizer", "LARS", {**_LARS, "foreach": True}),
        "timm": ("timm.optim", "Lars", {**_LARS, "trust_coeff": COEFFICIENT}),
    },
    "lamb": {
        "torch_optimizer": ("torch_optimizer", "Lamb", _LAMB),
        "pytorch_optimizer": ("pytorch_optimizer", "Lamb", {**_LAMB, **_COUPLED, "foreach": False}),
        "pytorch_optimizer foreach": ("pytorch_optimizer", "Lamb", {**_LAMB, **_COUPLED, "foreach": True}),
        "timm": ("timm.optim", "Lamb", {**_LAMB, "max_grad_norm": None}),
    },
}
"""For each optimizer of ours: name -> module, class and options."""


def peers(optimizer: str, parameters: Sequence[Tensor]) -> tuple[dict[str, OptimizerStep], dict[str, str]]:
    """Return a step of every other implementation that can be imported, by name, and why each of the others cannot.

    All of them update the same parameters, each with separate state.

    Args:
        optimizer: ``lars`` or ``lamb``.
        parameters: with their gradients.
    """
    steps: dict[str, OptimizerStep] = {"plain foreach": (foreach_lars if optimizer == "lars" else foreach_lamb)(parameters)}
    absent: dict[str, str] = {}
    for name, (module, kind, options) in PEERS[optimizer].items():
        try:
            optimizer_class = getattr(importlib.import_module(module), kind)
        except ModuleNotFoundError as error:
            absent[name] = f"{error.name} is not installed"
        except Exception as error:  # timm imports torchvision, whose operators fail to load with a torch of another build
            absent[name] = f"cannot be imported: {' '.join(str(error).split())}"
        else:
            steps[name] = optimizer_class(list(parameters), **options).step
    return steps, absent


@torch.no_grad()
def foreach_lars(parameters: Sequence[Tensor]) -> OptimizerStep:
    """Take one step of the paper's LARS on every tensor, none excluded, with torch's multi-tensor functions only."""
    weights, buffers = list(parameters), [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step() -> None:
        gradients = _gradients(weights)
        ratio = trust_ratio(_norms(weights), _norms(gradients), coefficient=COEFFICIENT, decay=LARS_DECAY)
        change = listed(torch._foreach_add(gradients, weights, alpha=LARS_DECAY))
        torch._foreach_mul_(change, (RATE * ratio).unbind())
        torch._foreach_mul_(buffers, MOMENTUM)
        torch._foreach_add_(buffers, change)
        torch._foreach_sub_(weights, buffers)

    return step


@torch.no_grad()
def foreach_lamb(parameters: Sequence[Tensor]) -> OptimizerStep:
    """Take one step of the paper's LAMB on every tensor, none excluded, with torch's multi-tensor functions only."""
    weights = list(parameters)
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    steps = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal steps
        steps += 1
        gradients = _gradients(weights)
        torch._foreach_lerp_(first, gradients, 1 - BETA1)
        torch._foreach_mul_(second, BETA2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - BETA2)
        # (m / c1) / (sqrt(v / c2) + eps) with both corrections in the denominator saves a pass
        correct1, correct2 = 1 - BETA1**steps, 1 - BETA2**steps
        root = torch._foreach_sqrt(second)
        torch._foreach_mul_(root, correct1 / correct2**0.5)
        torch._foreach_add_(root, correct1 * EPS)
        update = listed(torch._foreach_div(first, root))
        torch._foreach_add_(update, weights, alpha=LAMB_DECAY)
        torch._foreach_mul_(update, (RATE * trust_ratio(_norms(weights), _norms(update))).unbind())
        torch._foreach_sub_(weights, update)

    return step


def _gradients(weights: Sequence[Tensor]) -> list[Tensor]:
    return [p.grad for p in weights if p.grad is not None]


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors)))
