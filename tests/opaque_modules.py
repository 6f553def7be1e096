"""Modules that no exporter can see through, and the same widths in one that it can."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 6


class Fixed(nn.Module):
    """A layer of its own, in one piece: the transform has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(self.fc(torch.fft.fft(x).real)).real


class Branching(Fixed):
    """Data choose what it does."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        if y.sum() > 0:
            return y
        return -y


class Counting(Fixed):
    """So many turns as a number in the data says."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        for _ in range(int(y.abs().max().item()) % 3):
            y = y + 1
        return y


class InNumpy(Fixed):
    """Choices in numpy."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        values = y.detach().numpy()
        return y if values.max() > 0.5 else y + torch.from_numpy(values.copy())


class Function(torch.autograd.Function):
    """As ``InNumpy``, with a gradient of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone() if x.detach().numpy().max() > 0.5 else -x

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return gradients[0]


class OwnGradient(Fixed):
    """A custom function of autograd."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        result: Tensor = Function.apply(y)
        return result


class Packing(Fixed):
    """Chooses by how many elements are there."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x)
        found = (y > 0).nonzero()
        return y if len(found) > 3 else y * 2


OPAQUE: tuple[Callable[[], nn.Module], ...] = (Branching, Counting, InNumpy, OwnGradient, Packing)


class Inside(nn.Module):
    """One two modules deep, between layers of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 7), nn.ReLU(), nn.Sequential(nn.Linear(7, WIDTH), inner))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.after(self.inner(self.before(x)))
        return result


class Twice(nn.Module):
    """One that is used twice, on other sizes of the batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.between = inner, nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.inner(self.between(self.inner(x))[:2])
        return result


def around(*inner: nn.Module) -> nn.Module:
    """A network whose first and last layers may be smaller."""
    return nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, WIDTH), *inner, nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, 2)
    )


def network() -> nn.Module:
    """For the samples of ``user_module``."""
    return nn.Sequential(
        nn.Linear(29, 16), nn.ReLU(), nn.Linear(16, WIDTH), Branching(), nn.Linear(WIDTH, 16), nn.Linear(16, 5)
    )
