"""Interpolation of log ratios between steps: the position of a step, and a Gaussian process over positions.

Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, equations 2.23 to 2.26. The covariance of two steps falls
with the distance of their micro batches, devices per node and nodes, and if workload or device differ. The observations
determine two factors by the marginal likelihood (section 5.4.1): how noisy measurements are, and how much ratios of near steps
differ. A quiet cluster is followed closely, and steps of a noisy one are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import assumed
from paceline.hardware.cluster import Cluster
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

AMPLITUDES = tuple(np.exp(np.linspace(-2.0, 1.0, 10)).tolist())
"""Candidate factors on a kernel's ``near``."""
NOISES = tuple(np.exp(np.linspace(0.0, 2.5, 8)).tolist())
"""Candidate factors on a kernel's ``noise`` and ``run``, which are those of a quiet cluster."""
LOOSE: float = assumed("ratio_amplitude_sigma")
"""Prior standard deviation of the logarithm of the amplitude. The prior mean of its square is 1."""
NOISE_SIGMA: float = assumed("ratio_noise_sigma")
"""Prior standard deviation of the logarithm of the factor on the noise."""
TASK = 4
"""Number of coordinates that identify workload and device. The others describe how the step runs."""
MICRO_BATCH = 4
"""Index of the coordinate that differs between steps of one run."""
EQUAL = 1e-9
"""Largest difference of equal coordinates."""
_SCALES = np.array(assumed("ratio_scales"))
"""Unit of distance of each coordinate: log FLOPs per sample, log parameters, other workload, other device; log micro batch, log
devices per node, log nodes, several nodes, other links, other precision or sharding."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position of a step: four names, which are equal or one unit apart, and numbers (see ``_SCALES``)."""

    names: tuple[str, str, str, str]
    numbers: tuple[float, float, float, float, float, float]

    @classmethod
    def of(cls, workload: Workload, cluster: Cluster, strategy: Strategy) -> Position:
        """Return the position of a step."""
        several = cluster.num_nodes > 1
        x, mesh = strategy.gradient_exchange, strategy.parallelism
        division = (
            strategy.precision,
            x.compression.name,
            x.exchange.name,
            mesh.sharding.name,
            mesh.shard_devices,
            mesh.offload.name,
            mesh.recompute.name,
            mesh.recompute_layers,
        )
        return cls(
            (workload.name, cluster.device.name, cluster.network.name if several else "", str(division)),
            (
                math.log(max(workload.flops_per_sample, 1.0)),
                math.log(max(workload.num_parameters, 1)),
                math.log(strategy.micro_batch_size),
                math.log(cluster.world_size / cluster.num_nodes),
                math.log(cluster.num_nodes),
                float(several),
            ),
        )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return round(math.exp(self.numbers[3] + self.numbers[4]))


def coordinates(places: Sequence[Position], names: tuple[str, ...]) -> Array:
    """Return positions as coordinates relative to these names, (n, 10), in units of ``_SCALES``."""
    numbers = np.array([place.numbers for place in places]).reshape(-1, 6)
    alike = [[name != here for name, here in zip(place.names, names, strict=True)] for place in places]
    other = np.array(alike, dtype=np.bool_).reshape(-1, 4)
    # a single node has no network that could differ
    several = numbers[:, 5] > 0
    link = (other[:, 2] & several & (names[2] != "")).astype(float)
    table = (numbers[:, 0], numbers[:, 1], other[:, 0], other[:, 1], *numbers[:, 2:].T, link, other[:, 3])
    return np.asarray(np.stack(table, axis=1) / _SCALES)


@dataclass(frozen=True, slots=True)
class CovarianceKernel:
    """Covariance of two log ratios.

    It is a sum of variances: of all steps, of steps of one workload and device, of near steps, of one measurement, and of one
    run. Steps that differ only in their micro batch were measured one after the other on the same machines. A disturbance
    affects all of them."""

    every: float
    task: float
    near: float
    noise: float
    run: float = 0.0

    def of(self, places: Array, others: Array) -> Array:
        """Return covariances, (n, m), of the steps at coordinates ``places``, (n, 10), with those at ``others``, (m, 10)."""
        square = (places[:, None, :] - others[None, :, :]) ** 2
        task, place = square[..., :TASK].sum(-1), square[..., TASK:].sum(-1)
        shared: Array = self.every**2 + np.exp(-task / 2) * (self.task**2 + self.near**2 * np.exp(-place / 2))
        return shared

    def measured(self, places: Array) -> Array:
        """Return covariances, (n, n), of measurements at coordinates (n, 10), with the noise of each and of its run."""
        noise: Array = self.noise**2 * np.eye(len(places))
        if self.run:
            apart = np.delete(places, MICRO_BATCH, axis=1)
            noise += self.run**2 * (np.abs(apart[:, None, :] - apart[None, :, :]).max(axis=-1, initial=0.0) < EQUAL)
        return self.of(places, places) + noise

    @property
    def prior(self) -> float:
        """Standard deviation of the log ratio far from all observations."""
        return math.sqrt(self.every**2 + self.task**2 + self.near**2)


@dataclass(frozen=True, slots=True)
class Process:
    """A Gaussian process given observations: its kernel, the weights of its mean and the inverse of their covariance."""

    kernel: CovarianceKernel
    places: Array
    weights: Array
    inverse: Array

    @classmethod
    def of(cls, kernel: CovarianceKernel, places: Array, ratios: Array) -> Process:
        """Fit the process to log ratios (n,) at ``places`` (n, 10)."""
        own = fitted(kernel, places, ratios)
        inverse = np.asarray(np.linalg.inv(own.measured(places)), dtype=np.float64)
        return cls(own, places, np.asarray(inverse @ ratios, dtype=np.float64), inverse)

    def at(self, place: Array) -> tuple[float, float]:
        """Return mean and standard deviation of the log ratio at ``place``, with the noise of a measurement."""
        noise = math.hypot(self.kernel.noise, self.kernel.run)
        if not len(self.places):
            return 0.0, math.hypot(self.kernel.prior, noise)
        shared = self.kernel.of(place[None], self.places)[0]
        variance = self.kernel.prior**2 - float(shared @ self.inverse @ shared)
        return float(shared @ self.weights), math.hypot(math.sqrt(max(variance, 0.0)), noise)


def fitted(kernel: CovarianceKernel, places: Array, ratios: Array) -> CovarianceKernel:
    """Fit the noise, then the amplitude, of a kernel to log ratios (n,) at ``places`` (n, 10)."""

    def noisy(factor: float) -> CovarianceKernel:
        return replace(kernel, noise=factor * kernel.noise, run=factor * kernel.run)

    if len(places):
        kernel = noisy(_factor(NOISES, noisy, lambda log: (log / NOISE_SIGMA) ** 2, places, ratios))
    return replace(kernel, near=kernel.near * amplitude(kernel, places, ratios))


def amplitude(kernel: CovarianceKernel, places: Array, ratios: Array) -> float:
    """Fit the amplitude (the root mean square factor on ``near``) to log ratios (n,) at ``places`` (n, 10)."""
    if not len(places):
        return 1.0

    def nearer(factor: float) -> CovarianceKernel:
        return replace(kernel, near=factor * kernel.near)

    return _factor(AMPLITUDES, nearer, lambda log: ((log + LOOSE**2) / LOOSE) ** 2, places, ratios)


def _factor(
    factors: Sequence[float],
    changed: Callable[[float], CovarianceKernel],
    prior: Callable[[float], float],
    places: Array,
    ratios: Array,
) -> float:
    """Return the root mean square factor under the likelihood of the ratios and a prior cost of the factor's logarithm."""
    costs = []
    for factor in factors:
        root = np.linalg.cholesky(changed(factor).measured(places))
        misfit = np.linalg.solve(root, ratios)
        costs.append(float(misfit @ misfit + 2 * np.log(np.diag(root)).sum()) + prior(math.log(factor)))
    weights = [math.exp((min(costs) - cost) / 2) for cost in costs]
    return math.sqrt(sum(w * factor**2 for w, factor in zip(weights, factors, strict=True)) / sum(weights))
