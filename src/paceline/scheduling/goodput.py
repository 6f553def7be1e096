"""Goodput: throughput times statistical efficiency, at the best batch (Pollux, OSDI 2021, equations 5 to 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.array_types import Array, Ints

SIZES = 50
"""Batch sizes that are tried, in equal ratios from the least to the largest (Pollux's simulator)."""
_SLACK = 1e-8


class StepTimes(Protocol):
    """What a step takes on devices that are packed on ``nodes``."""

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Seconds of a step with its exchange, and of a step that only accumulates; arrays of one shape."""
        ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Batches that a job may use, in samples.

    Attributes:
        first: the batch against which progress counts. ``most``: the largest, over all devices.
        local_least, local_most: of one device and pass.
        fixed: a batch that stays, over all devices; 0: any.
    """

    first: int
    most: int
    local_least: int
    local_most: int
    fixed: int = 0


@dataclass(frozen=True, slots=True)
class Noise:
    """Squared norm of the gradient and its variance at the first batch: their ratio is the noise scale in first batches."""

    signal: float
    variance: float

    def gain(self, scale: Array | float) -> Array:
        """Progress of a step, in steps of the first batch, at ``scale`` times that batch (Pollux, equation 7)."""
        return np.asarray((self.variance + self.signal) / (self.variance / scale + self.signal))


def batch_split(limits: BatchLimits, batch: int, devices: int) -> tuple[int, int]:
    """A batch as samples of a device and pass, and passes beyond the first.

    One device that takes more than the first batch takes at least two passes: the noise is estimated between passes.
    """
    local = int(np.ceil(batch / devices - _SLACK))
    passes = max(int(np.ceil(local / limits.local_most - _SLACK)) - 1, 0)
    if devices == 1 and batch > limits.first:
        passes = max(1, passes)
    atomic = int(np.ceil(local / (passes + 1) - _SLACK))
    return min(atomic, limits.most // (devices * (passes + 1))), passes


def best_batches(times: StepTimes, limits: BatchLimits, noise: Noise, nodes: Ints, devices: Ints) -> tuple[Array, Ints, Ints]:
    """The best goodput on each number of devices, in steps of the first batch a second, with its batch.

    Args:
        nodes, devices: arrays of one shape (n,), each at least 1.

    Returns:
        Goodput (0 where no batch is legal), samples of a device and pass, passes beyond the first; each of shape (n,).
    """
    if limits.fixed:
        splits = [batch_split(limits, limits.fixed, int(count)) for count in devices]
        local = np.array([[split[0] for split in splits]])
        passes = np.array([[split[1] for split in splits]])
    else:
        local, passes = _candidates(limits, devices)
    legal = (local >= limits.local_least) & (local <= limits.local_most) if not limits.fixed else local >= 1
    shape = local.shape
    many_nodes, many_devices = np.broadcast_to(nodes, shape), np.broadcast_to(devices, shape)
    step, accumulate = times.step_s(many_nodes, many_devices, np.maximum(local, 1))
    scale = many_devices * local * (passes + 1) / limits.first
    with np.errstate(divide="ignore", invalid="ignore"):
        goodput = np.where(legal & (scale > 0), noise.gain(np.maximum(scale, 1e-12)) / (step + passes * accumulate), 0.0)
    goodput = np.nan_to_num(goodput, nan=0.0)
    best = goodput.argmax(axis=0), np.arange(shape[1])
    return goodput[best], local[best], passes[best]


def _candidates(limits: BatchLimits, devices: Ints) -> tuple[Ints, Ints]:
    """Samples of a device and pass, and passes beyond the first, of ``SIZES`` batches; shape (SIZES, n)."""
    least = np.maximum(limits.first, limits.local_least * devices).astype(float)
    most = np.maximum(least, limits.most)
    local = least * (most / least) ** np.linspace(0, 1, SIZES)[:, None] / devices
    passes = np.ceil(local / limits.local_most - _SLACK) - 1
    alone = (devices == 1) & (local > limits.first + _SLACK)
    passes = np.maximum(np.where(alone, np.maximum(passes, 1), passes), 0)
    sizes = np.ceil(local / (passes + 1) - _SLACK)
    return np.asarray(sizes, np.int64), np.asarray(passes, np.int64)


__all__ = ["BatchLimits", "Noise", "StepTimes", "batch_split", "best_batches"]
