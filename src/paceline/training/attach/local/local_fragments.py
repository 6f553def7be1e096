"""Fragments of a network: their weights, their anchor, their outer step, and an exchange in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from paceline.strategy import LocalSteps
from paceline.training.attach.exchange_thread import Future
from paceline.training.exchanges.gradients.tensor_layout import Layout, TensorSpec
from paceline.training.exchanges.wires.meter import Meter


class Fragment:
    """Fragment of a network: some tensors with their anchor, and the outer step that moves it.

    Attributes:
        tensors: its tensors, or this rank's shards of them. ``layout``: layout of the elements that this rank exchanges.
        anchor: shared weights of the last exchange, flat, (elements,).
        momentum: momentum of the outer step, (elements,); None without.
        weights: weights of this worker, each in its shape; they share the model's memory.
        idle: whether this worker has taken no step since the fragment's last exchange began.
    """

    def __init__(
        self, tensors: Sequence[TensorSpec], weights: Sequence[torch.Tensor], layout: Layout, local: LocalSteps
    ) -> None:
        self.tensors, self.layout, self.idle = list(tensors), layout, True
        self.weights = [p.detach() for p in weights]
        wide = any(p.dtype == torch.float64 for p in weights)
        flat = torch.cat([p.reshape(-1).to(torch.float64 if wide else torch.float32) for p in self.weights])
        self.anchor = nn.Parameter(flat)
        kept = local.outer_momentum > 0
        self._outer = torch.optim.SGD([self.anchor], local.outer_lr, local.outer_momentum, nesterov=kept)
        self.momentum = torch.zeros_like(flat) if kept else None
        if self.momentum is not None:
            self._outer.state[self.anchor]["momentum_buffer"] = self.momentum

    def named(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return each tensor's part of a flat tensor, by name."""
        parts = flat.split([t.elements for t in self.tensors])
        return dict(zip((t.name for t in self.tensors), parts, strict=True))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.anchor.numel()

    @torch.no_grad()
    def difference(self, into: torch.Tensor) -> torch.Tensor:
        """Write the pseudo-gradient into the first elements of ``into``, and return it."""
        out = into[: self.elements]
        for part, anchor, p in zip(self._tensors_of(out), self._tensors_of(self.anchor), self.weights, strict=True):
            torch.sub(anchor, p, out=part)
        return out

    @torch.no_grad()
    def move(self, mean: torch.Tensor) -> None:
        """Take the outer step with the mean of the pseudo-gradients."""
        self.anchor.grad = mean
        self._outer.step()
        self.anchor.grad = None

    @torch.no_grad()
    def take(self, own_share: float = 0.0) -> None:
        """Set the weights to the anchor, mixed with a share of the present weights."""
        for anchor, p in zip(self._tensors_of(self.anchor), self.weights, strict=True):
            if own_share:
                p.lerp_(anchor.to(p.dtype), 1 - own_share)
            else:
                p.copy_(anchor)

    def _tensors_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [
            part.view(p.shape) for part, p in zip(flat.split([t.elements for t in self.tensors]), self.weights, strict=True)
        ]


@dataclass
class StartedExchange:
    """Exchange of a fragment in flight.

    Attributes:
        due: step after which its mean is applied.
        mean: the pseudo-gradient; becomes its mean. ``buffers``: likewise; empty where they have no turn.
        began_s: when, on this process's clock.
        trained: how many workers have taken steps since the fragment's last exchange; 0: nothing was exchanged.
        finite: whether the mean is. ``meter``: counts of the exchange after its end.
    """

    fragment: int
    due: int
    mean: torch.Tensor
    buffers: torch.Tensor
    done: Future
    began_s: float = 0.0
    trained: int = 0
    finite: bool = True
    meter: Meter | None = None
