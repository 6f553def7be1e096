"""Norms of the gradient before and after the exchange, measured in the hook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch

from paceline.prediction.learning.noise_scale import NoiseScale
from paceline.training.exchanges.wires.collectives import Wire

MEASURABLE = ("dense", "bf16")
"""Compressions whose own error is too small to count as signal."""


class NoiseMeter:
    """Squared norms of this rank's gradients and of their mean, summed over a step's buckets.

    The mean gradient is the same on every rank, so only one scalar a step is exchanged. It is in flight while the next step
    computes, so no step waits for it. Sums stay on the device until then.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._scale = NoiseScale(wire.world_size) if wire.world_size > 1 else None
        self._local: torch.Tensor | None = None  # of the stream of the backward pass
        self._before: torch.Tensor | None = None  # that of the step before, which the exchange's stream may still read
        self._mean = self._zero()
        self._under_way: Callable[[], None] | None = None

    @property
    def scale(self) -> NoiseScale | None:
        """Return the noise scale estimated from all steps so far; None on a single rank. Call this between two steps."""
        self._finish()
        return self._scale

    def state_dict(self) -> dict[str, float]:
        """Return the numbers of the estimate, equal on every rank; empty on one rank."""
        return asdict(self.scale) if self.scale is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the numbers of the estimate. From an empty state it restarts."""
        self._finish()
        if self._scale is not None:
            self._scale = NoiseScale(**(state or {"workers": self._scale.workers}))

    def local(self, gradient: torch.Tensor) -> None:
        """Add a bucket of this rank's gradients before any other operation on them."""
        if self._scale is not None:
            square = _square(gradient)
            self._local = square if self._local is None else self._local + square

    def mean(self, gradient: torch.Tensor) -> None:
        """Add a part of the mean gradient."""
        if self._scale is not None:
            self._mean = self._mean + _square(gradient)

    def end_step(self, usable: bool, factor: float) -> None:
        """Count the step unless a gradient was not finite. ``factor``: factor of the gradient scaler."""
        local, mean = self._zero() if self._local is None else self._local, self._mean
        self._before, self._local, self._mean = self._local, None, self._zero()
        self._finish()
        scale = self._scale
        if scale is None:
            return
        total = self._wire.note(local.reshape(1).clone())

        def finish() -> None:
            sums = float(total())
            if usable:
                scale.add(sums / scale.workers / factor**2, float(mean) / factor**2)

        self._under_way = finish

    def _zero(self) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float32, device=self._wire.device)

    def _finish(self) -> None:
        """Count the step whose scalar was in flight."""
        finish, self._under_way = self._under_way, None
        if finish is not None:
            finish()


def _square(values: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if values.dtype == torch.float64 else torch.float32  # the norm narrows nothing
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=wide).float()
    return norm * norm
