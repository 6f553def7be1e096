"""The gradient noise scale: how large a batch must be before its gradient says more than its noise.

McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.2 (B_simple = tr(Sigma) / |G|^2) and appendix A.1
(the unbiased pair). Of N workers with b samples each, the squared norm of a gradient is |G|^2 + tr(Sigma) / b on average
and that of their mean |G|^2 + tr(Sigma) / (N b): two equations for two unknowns, from norms that data parallelism has anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DECAY = 0.99
"""Of the moving averages: about a hundred steps, many for a mean and few beside a run. A setting, not an estimate."""
LEAST_STEPS = 20
"""Fewer say nothing: a step's own |G|^2 is as often below zero as not."""


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
        return _ratio(self.signal, self.noise, local_batch) if self.steps >= LEAST_STEPS else None

    def take(self, local_batch: float) -> float | None:
        """B_simple over the steps since the last call, such as an epoch's; while they are too few they wait for more."""
        if self.steps - self._taken < LEAST_STEPS:
            return None
        signal, noise = self._signal_sum, self._noise_sum
        self._taken, self._signal_sum, self._noise_sum = self.steps, 0.0, 0.0
        return _ratio(signal, noise, local_batch)


def _ratio(signal: float, noise: float, local_batch: float) -> float | None:
    if not (math.isfinite(signal) and math.isfinite(noise)) or signal <= 0 or noise <= 0:
        return None
    return local_batch * noise / signal


@dataclass(frozen=True, slots=True)
class BatchEfficiency:
    """What a batch costs beside the two extremes of the same training: ``(S / Smin - 1) (E / Emin - 1) = 1``.

    McCandlish et al. 2018, section 2.3, equation 2.11: Smin are the steps that no batch goes below, Emin the samples, and
    ``Bcrit = Emin / Smin`` is where each takes twice its least. It holds where the learning rate is tuned at each batch.

    Attributes:
        batch: B, samples a step over all workers.
        critical_batch: Bcrit, in samples, such as the noise scale; infinite where a larger batch never costs samples.
    """

    batch: float
    critical_batch: float

    def __post_init__(self) -> None:
        if not 0 < self.batch < math.inf or not self.critical_batch > 0:
            raise ValueError(f"batch {self.batch}, critical batch {self.critical_batch}: both are more than 0 samples")

    @property
    def steps_factor(self) -> float:
        """S(B) / Smin = 1 + Bcrit / B."""
        return 1 + self.critical_batch / self.batch

    @property
    def samples_factor(self) -> float:
        """E(B) / Emin = 1 + B / Bcrit."""
        return 1 + self.batch / self.critical_batch

    @property
    def wasted_share(self) -> float:
        """1 - Emin / E(B) = B / (B + Bcrit): the samples that a small batch would not have needed, 0 to 1."""
        return self.batch / (self.batch + self.critical_batch)


def critical_batch(scales: Iterable[float], batch: float) -> float | None:
    """Bcrit of a run at one batch from its noise scale over equal numbers of steps, such as epochs; in samples.

    A stretch of training that takes s steps at an endless batch takes ``(1 + scale / B) s`` steps and ``(scale + B) s`` samples
    at B (McCandlish et al. 2018, section 2.3 and appendix D): the scales' mean weighed by ``1 / (1 + scale / B)`` is the Emin /
    Smin of the whole. None without a scale.
    """
    kept = [(scale, batch / (batch + scale)) for scale in scales]
    return sum(scale * weight for scale, weight in kept) / sum(weight for _, weight in kept) if kept else None


def batch_efficiency(curve: Iterable[Mapping[str, Any]], batch: float) -> dict[str, float]:
    """What the batch of a run cost, from the ``noise_scale`` of its epochs; all of it in samples or factors.

    Returns:
        ``batch``, ``critical_batch`` of the run, ``low`` and ``high`` of its epochs' scales, and the three properties of
        ``BatchEfficiency``; empty where no epoch has a scale.
    """
    scales = [scale for entry in curve if (scale := entry.get("noise_scale")) is not None]
    critical = critical_batch(scales, batch)
    if critical is None:
        return {}
    efficiency = BatchEfficiency(batch, critical)
    names = ("batch", "critical_batch", "steps_factor", "samples_factor", "wasted_share")
    return {"low": min(scales), "high": max(scales), **{name: float(getattr(efficiency, name)) for name in names}}


__all__ = ["DECAY", "LEAST_STEPS", "BatchEfficiency", "NoiseScale", "batch_efficiency", "critical_batch"]
