"""A user's own network and data, as ``--model user_module:network --data user_module:samples`` names them."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn


def network() -> nn.Module:
    """Dropout and BatchNorm, so that a resumed run must also draw and average alike."""
    return nn.Sequential(
        nn.Linear(29, 67), nn.BatchNorm1d(67), nn.ReLU(), nn.Dropout(0.3), nn.Linear(67, 41), nn.ReLU(), nn.Linear(41, 5)
    )


def unnormalized() -> nn.Module:
    """The same without BatchNorm, whose statistics FSDP2 does not narrow."""
    layers = network()
    layers[1] = nn.Identity()
    return layers


def samples() -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(8)
    x = torch.randn(300, 29, generator=g)
    y = (x[:, :5] + 0.3 * torch.randn(300, 5, generator=g)).argmax(1)
    return x[:240], y[:240], x[240:], y[240:]


def fewer() -> tuple[torch.Tensor, ...]:
    """Six steps of 24 an epoch."""
    x, y, test_x, test_y = samples()
    return x[:144], y[:144], test_x, test_y


def fewest() -> tuple[torch.Tensor, ...]:
    """Four steps of 24 an epoch."""
    x, y, test_x, test_y = samples()
    return x[:96], y[:96], test_x, test_y


def plain() -> nn.Module:
    return nn.Linear(29, 5)


def spoilt() -> tuple[torch.Tensor, ...]:
    """One sample is infinite: the gradient of one step an epoch is not finite."""
    x, y, test_x, test_y = fewest()
    x[70, 3] = torch.inf
    return x, y, test_x, test_y


def endless() -> tuple[torch.Tensor, ...]:
    """So many that an epoch does not end within a test."""
    x, y, test_x, test_y = samples()
    return x.repeat(2000, 1), y.repeat(2000), test_x, test_y


def three() -> tuple[torch.Tensor, ...]:
    return samples()[:3]


def float_labels() -> tuple[torch.Tensor, ...]:
    x, y, test_x, test_y = samples()
    return x, y.float(), test_x, test_y


def unequal() -> tuple[torch.Tensor, ...]:
    x, y, test_x, test_y = samples()
    return x[1:], y, test_x, test_y


def not_a_network() -> str:
    return "a string"


def small() -> nn.Module:
    """Just large enough that a compression packs one tensor."""
    return nn.Sequential(nn.Linear(8, 160), nn.ReLU(), nn.Linear(160, 3))


class Idle(nn.Module):
    """Waits for a while in every step: a run that a test only ends leaves the processor to the others. Where the working
    directory has a file ``hold`` it says so with a file ``held`` and waits to be ended."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Path("hold").exists():
            Path("held").touch()
            time.sleep(60)
        time.sleep(0.02)
        return x


def small_and_idle() -> nn.Module:
    return nn.Sequential(Idle(), small())


def plain_and_idle() -> nn.Module:
    return nn.Sequential(Idle(), plain())


def few() -> tuple[torch.Tensor, ...]:
    """A step an epoch and rank takes milliseconds."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(64, 8, generator=g), torch.arange(64) % 3
    return x, y, x, y


def even() -> nn.Module:
    """Neither dropout nor batch norm: one batch is the mean of its parts."""
    return nn.Sequential(nn.Linear(29, 67), nn.Tanh(), nn.Linear(67, 5))


class Residual(nn.Module):
    """Block of several layers with one stored input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.expand, self.contract = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.contract(torch.nn.functional.gelu(self.expand(self.norm(x))))


def blocks() -> nn.Module:
    return nn.Sequential(Residual(29), Residual(29), nn.Linear(29, 5))


class Repeated(nn.Module):
    """Wide rows, many for each sample, so that activations are most of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Residual(64) for _ in range(8)), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None, :1].expand(-1, 512, 64)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def deep() -> nn.Module:
    return Repeated()
