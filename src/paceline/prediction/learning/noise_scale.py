"""Gradient noise scale: the batch size at which a gradient's signal equals its noise.

McCandlish et al. 2018, An Empirical Model of Large-Batch Training, section 2.2 (B_simple = tr(Sigma) / |G|^2) and appendix A.1
(the unbiased pair). With N workers of b samples each, the squared norm of a gradient is |G|^2 + tr(Sigma) / b on average,
and that of their mean |G|^2 + tr(Sigma) / (N b). Data parallelism computes both norms, two equations for two unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

DECAY = 0.99
"""Decay of the moving averages, about a hundred steps: many for a mean and few in a run. A setting, not an estimate."""
LEAST_STEPS = 20
"""Least number of steps for an estimate. In a single step |G|^2 is as often below zero as not."""


@dataclass
class NoiseScale:
    """Moving averages of the unbiased pair over the steps of a run, and their means since the last ``take``.

    It is the ratio of the averages, not an average of ratios: |G|^2 of a single step may be below zero.

    Attributes:
        workers: N, at least 2.
        signal: |G|^2, the squared norm of the true gradient. ``noise``: tr(Sigma) / b, the variance of a worker's gradient.
        steps: number of steps.
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
        """Add the norms of one step.

        Args:
            local: squared norm of a worker's gradient, averaged over workers. ``mean``: squared norm of the mean gradient.
        """
        n = self.workers
        signal, noise = (n * mean - local) / (n - 1), (local - mean) * n / (n - 1)
        self.signal += (1 - self.decay) * (signal - self.signal)
        self.noise += (1 - self.decay) * (noise - self.noise)
        self.steps += 1
        self._signal_sum, self._noise_sum = self._signal_sum + signal, self._noise_sum + noise

    def batch(self, local_batch: float) -> float | None:
        """Return B_simple in samples, over about the last hundred steps; None if the averages are not yet positive.

        Args:
            local_batch: b, samples of a worker's gradient.
        """
        return _ratio(self.signal, self.noise, local_batch) if self.steps >= LEAST_STEPS else None

    def take(self, local_batch: float) -> float | None:
        """Return B_simple over the steps since the last call, such as an epoch. Too few steps wait for the next call."""
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
    """Cost of a batch relative to the two extremes of the same training: ``(S / Smin - 1) (E / Emin - 1) = 1``.

    McCandlish et al. 2018, section 2.3, equation 2.11. Smin is the least number of steps of any batch, Emin that of samples. At
    ``Bcrit = Emin / Smin`` each takes twice its least. This assumes that the learning rate is tuned at each batch.

    Attributes:
        batch: B, samples a step over all workers.
        critical_batch: Bcrit, in samples, such as the noise scale; inf if a larger batch never costs samples.
    """

    batch: float
    critical_batch: float

    def __post_init__(self) -> None:
        if not 0 < self.batch < math.inf or not self.critical_batch > 0:
            raise ValueError(f"batch {self.batch}, critical batch {self.critical_batch}: both are more than 0 samples")

    @property
    def steps_factor(self) -> float:
        """Steps relative to the minimum: S(B) / Smin = 1 + Bcrit / B."""
        return 1 + self.critical_batch / self.batch

    @property
    def samples_factor(self) -> float:
        """Samples relative to the minimum: E(B) / Emin = 1 + B / Bcrit."""
        return 1 + self.batch / self.critical_batch

    @property
    def wasted_share(self) -> float:
        """Share of the samples that a small batch would not need, 0 to 1: 1 - Emin / E(B) = B / (B + Bcrit)."""
        return self.batch / (self.batch + self.critical_batch)


def critical_batch(scales: Iterable[float], batch: float) -> float | None:
    """Return Bcrit of a run at one batch, in samples, from its noise scale over equal numbers of steps, such as epochs.

    A stretch of training with s steps at an infinite batch takes ``(1 + scale / B) s`` steps and ``(scale + B) s`` samples at B
    (McCandlish et al. 2018, section 2.3 and appendix D). So the mean of the scales, weighted by ``1 / (1 + scale / B)``, is
    Emin / Smin of the whole run. None without a scale.
    """
    kept = [(scale, batch / (batch + scale)) for scale in scales]
    return sum(scale * weight for scale, weight in kept) / sum(weight for _, weight in kept) if kept else None


def batch_efficiency(curve: Iterable[Mapping[str, Any]], batch: float) -> dict[str, float]:
    """Return the cost of a run's batch from the ``noise_scale`` of its epochs, in samples or factors.

    Returns:
        ``batch``, ``critical_batch`` of the run, ``low`` and ``high`` of its epochs' scales, and the three properties of
        ``BatchEfficiency``; empty if no epoch has a scale.
    """
    scales = [scale for entry in curve if (scale := entry.get("noise_scale")) is not None]
    critical = critical_batch(scales, batch)
    if critical is None:
        return {}
    efficiency = BatchEfficiency(batch, critical)
    names = ("batch", "critical_batch", "steps_factor", "samples_factor", "wasted_share")
    return {"low": min(scales), "high": max(scales), **{name: float(getattr(efficiency, name)) for name in names}}
