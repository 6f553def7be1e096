"""Norms of the gradient before and after the exchange, as the hook sees them go by."""

from __future__ import annotations

import torch

from paceline.prediction.noise import NoiseScale
from paceline.training.wire import Wire


class NoiseMeter:
    """Squared norms of this rank's gradients and of their mean, summed over a step's buckets.

    The mean gradient is the same on every rank, so one scalar a step is all that is exchanged. Sums stay on the device until
    the step ends.

    Attributes:
        scale: the estimate; None on one rank, which shows no noise.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.scale = NoiseScale(wire.world_size) if wire.world_size > 1 else None
        self._local = self._mean = torch.zeros((), device=wire.device)

    def local(self, gradient: torch.Tensor) -> None:
        """A bucket of this rank's gradients, before anything is done to them."""
        if self.scale is not None:
            self._local = self._local + _square(gradient)

    def mean(self, gradient: torch.Tensor) -> None:
        """A part of the mean gradient."""
        if self.scale is not None:
            self._mean = self._mean + _square(gradient)

    def end_step(self, usable: bool, factor: float) -> None:
        """Count the step unless a gradient was not finite. ``factor``: that of a gradient scaler."""
        local, mean = self._local, self._mean
        self._local = self._mean = torch.zeros((), device=self._wire.device)
        if self.scale is None:
            return
        sums = self._wire.all_reduce(local.reshape(1).clone(), name="noise").wait()
        if usable:
            self.scale.add(float(sums) / self.scale.workers / factor**2, float(mean) / factor**2)


def _square(values: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float32)
    return norm * norm


__all__ = ["NoiseMeter"]
