"""Step times fitted to a job's own observations (Pollux, OSDI 2021, section 4.1).

``compute = a_c + b_c m``; the network takes ``a_r + b_r (K - 2)`` within a node and ``a_n + b_n (K - 2)`` between nodes; a step
is ``(compute^g + network^g)^(1/g)`` with an overlap of g from 1 (none) to 10 (all). Unseen terms are 0, so a job is optimistic
about new sizes and tries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.speeds.goodput import StepSeconds

_LEAST = 1e-8
Observations = tuple[tuple[tuple[int, int, int], tuple[float, float]], ...]
"""((nodes, devices, local batch), (step, exchange)) in seconds, in order of observation."""


@dataclass(frozen=True)
class FittedSpeed(StepSeconds):
    """Seven fitted parameters: compute, between nodes, within a node, overlap."""

    compute: tuple[float, float]
    between: tuple[float, float]
    within: tuple[float, float]
    overlap: float

    @classmethod
    def of(cls, seen: Mapping[tuple[int, int, int], tuple[float, float]]) -> FittedSpeed:
        """Fit the parameters to observations: (nodes, devices, local batch) -> seconds of (step, its exchange)."""
        return _fit(tuple(seen.items()))

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Return the seconds of a step; see ``StepSeconds``."""
        compute = self.compute[0] + self.compute[1] * local
        beyond = np.maximum(devices - 2, _LEAST)
        network = np.where(
            nodes > 1,
            self.between[0] + self.between[1] * beyond,
            np.where(devices > 1, self.within[0] + self.within[1] * beyond, _LEAST),
        )
        step = np.exp(np.logaddexp(self.overlap * np.log(compute), self.overlap * np.log(network)) / self.overlap)
        return np.asarray(step), np.asarray(compute)


@lru_cache(maxsize=65536)
def _fit(seen: Observations) -> FittedSpeed:
    from scipy.optimize import minimize

    keys = np.array([key for key, _ in seen], dtype=float)
    nodes, devices, local = keys.T
    step, exchange = np.array([value for _, value in seen], dtype=float).T
    compute = step - exchange
    start = np.array([1e-1, 1e-2, 1e-1, 1e-2, 1e-1, 1e-2, 1 + 1e-3])
    bounds = [[_LEAST, np.inf] for _ in range(6)] + [[1.0, 10.0]]

    def pin(index: int, value: float) -> None:
        start[index] = value
        bounds[index] = [value, value]

    if len(np.unique(local)) == 1:  # half of one observation is constant, half grows with the batch
        pin(0, float(compute.mean()) / 2)
    unseen = (not (nodes > 1).any(), not ((nodes == 1) & (devices > 1)).any(), not (devices > 2).any())
    if unseen[0]:
        pin(2, _LEAST)
        pin(3, _LEAST)
    if unseen[1]:
        pin(4, _LEAST)
        pin(5, _LEAST)
    if unseen[2]:
        pin(3, _LEAST)
        pin(5, _LEAST)
    seen_arrays = (nodes > 1, devices > 1, np.maximum(devices - 2, _LEAST), local, np.log(compute), np.log(step))
    best = minimize(_loss, start, args=seen_arrays, jac=True, method="L-BFGS-B", bounds=bounds).x
    if unseen[0]:  # a network between nodes is no faster than the links within
        best[2], best[3] = max(best[2], best[4] * 1.1), max(best[3], best[5] * 1.1)
    a_c, b_c, a_n, b_n, a_r, b_r, overlap = (float(value) for value in best)
    return FittedSpeed((a_c, b_c), (a_n, b_n), (a_r, b_r), overlap)


def _loss(
    x: Array, between: Bools, many: Bools, beyond: Array, local: Array, log_compute: Array, log_step: Array
) -> tuple[float, Array]:
    """Return the errors of the logarithms of both times, with a slight penalty on overlap and growth, and the gradient."""
    a_c, b_c, a_n, b_n, a_r, b_r, g = x
    compute = a_c + b_c * local
    network = np.where(between, a_n + b_n * beyond, np.where(many, a_r + b_r * beyond, _LEAST + _LEAST * beyond))
    log_c, log_n = np.log(compute), np.log(network)
    total = np.logaddexp(g * log_c, g * log_n)
    share_c, share_n = np.exp(g * log_c - total), np.exp(g * log_n - total)
    error_c, error_s = log_c - log_compute, total / g - log_step
    rms_c, rms_s = np.sqrt((error_c**2).mean()), np.sqrt((error_s**2).mean())
    weight_c = error_c / (len(local) * max(rms_c, 1e-12)) / compute
    weight_s = error_s / (len(local) * max(rms_s, 1e-12))
    by_compute = weight_c + weight_s * share_c / compute
    by_network = weight_s * share_n / network
    by_overlap = (weight_s * ((share_c * log_c + share_n * log_n) / g - total / g**2)).sum()
    inside = many & ~between
    growth_n, growth_r = b_n / a_n, b_r / a_r
    loss = rms_c + rms_s + 1e-3 * (g - 1) ** 2 + 1e-2 * (growth_n**2 + growth_r**2)
    gradient = np.array(
        [
            by_compute.sum(),
            (by_compute * local).sum(),
            by_network[between].sum() - 2e-2 * growth_n**2 / a_n,
            (by_network * beyond)[between].sum() + 2e-2 * growth_n / a_n,
            by_network[inside].sum() - 2e-2 * growth_r**2 / a_r,
            (by_network * beyond)[inside].sum() + 2e-2 * growth_r / a_r,
            by_overlap + 2e-3 * (g - 1),
        ]
    )
    return float(loss), gradient
