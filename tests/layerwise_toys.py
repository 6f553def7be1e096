"""A small network and made-up gradients for LARS and LAMB, with either path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paceline

KINDS = ("LARS", "LAMB")
PATHS = pytest.mark.parametrize("foreach", [None, True], ids=["kernels", "foreach"])
BOTH = pytest.mark.parametrize("kind", KINDS)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Three layers, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 3)).to(dtype)


def make(kind: str, params: Any, **options: Any) -> Any:
    """The optimizer of that kind."""
    return getattr(paceline, kind)(params, **{"lr": 0.05, "weight_decay": 0.01, **options})


def give(model: nn.Module, step: int, scale: float = 1.0) -> None:
    """Gradients that depend on the step alone."""
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = (scale * torch.randn(p.shape, generator=generator)).to(p.dtype)


def train(model: nn.Module, optimizer: Any, first: int = 0, last: int = 4) -> list[Tensor]:
    """The weights after these steps."""
    for step in range(first, last):
        give(model, step)
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def equal(first: Any, second: Any) -> bool:
    """Whether all are the same bits."""
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
