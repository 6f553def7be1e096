"""The gradient noise scale: how large a batch must be before its gradient says more than its noise.

McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.2 (B_simple = tr(Sigma) / |G|^2) and appendix A.1
(the unbiased pair). Of N workers with b samples each, the squared norm of a gradient is |G|^2 + tr(Sigma) / b on average
and that of their mean |G|^2 + tr(Sigma) / (N b): two equations for two unknowns, from norms that data parallelism has anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DECAY = 0.99
"""Of the moving averages: about a hundred steps."""


@dataclass
class NoiseScale:
    """Moving averages of the unbiased pair over the steps of a run, and their means since the last ``take``.

    The ratio is taken of the averages, never averaged: a step's own |G|^2 may be below zero.

    Attributes:
        workers: N, at least 2.
        signal: |G|^2, the squared norm of the true gradient; ``noise``: tr(Sigma) / b, the variance of a worker's.
        steps: how many were seen.
    """

    workers: int
    decay: float = DECAY
    signal: float = 0.0
    noise: float = 0.0
    steps: int = 0
    _signal_sum: float = 0.0
    _noise_sum: float = 0.0
    _taken: int = 0

    def __post_init__(self) -> None:
        if self.workers < 2 or not 0 <= self.decay < 1:
            raise ValueError(f"{self.workers} workers, decay {self.decay}: noise shows between at least two workers")

    def add(self, local: float, mean: float) -> None:
        """A step.

        Args:
            local: squared norm of a worker's gradient, the mean over the workers; ``mean``: that of the mean gradient.
        """
        n = self.workers
        signal, noise = (n * mean - local) / (n - 1), (local - mean) * n / (n - 1)
        self.signal += (1 - self.decay) * (signal - self.signal)
        self.noise += (1 - self.decay) * (noise - self.noise)
        self.steps += 1
        self._signal_sum, self._noise_sum = self._signal_sum + signal, self._noise_sum + noise

    def batch(self, local_batch: float) -> float | None:
        """B_simple in samples, over about the last hundred steps; None where the averages say nothing yet.

        Args:
            local_batch: b, samples of a worker's gradient.
        """
        return _ratio(self.signal, self.noise, local_batch)

    def take(self, local_batch: float) -> float | None:
        """B_simple over the steps since the last call, such as an epoch's."""
        steps, self._taken = self.steps - self._taken, self.steps
        signal, noise = self._signal_sum, self._noise_sum
        self._signal_sum = self._noise_sum = 0.0
        return _ratio(signal, noise, local_batch) if steps else None


def _ratio(signal: float, noise: float, local_batch: float) -> float | None:
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0 or noise <= 0:
        return None
    return local_batch * noise / signal


__all__ = ["DECAY", "NoiseScale"]
