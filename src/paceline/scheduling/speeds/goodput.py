"""Goodput: throughput times statistical efficiency, at the best batch (Pollux, OSDI 2021, equations 5 to 8)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline.array_types import Array, Ints

SIZES = 50
"""Batch sizes that are tried, geometrically spaced from the least to the largest (Pollux's simulator)."""
_SLACK = 1e-8


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Batches that a job may use, in samples.

    Attributes:
        first: reference batch of the progress. ``most``: largest batch over all devices.
        local_least, local_most: bounds for one device and pass.
        fixed: fixed batch over all devices; 0: none.
    """

    first: int
    most: int
    local_least: int
    local_most: int
    fixed: int = 0


@dataclass(frozen=True, slots=True)
class Noise:
    """Squared norm and variance of the gradient at the first batch. Their ratio is the noise scale in first batches."""

    signal: float
    variance: float

    def gain(self, scale: Array | float) -> Array:
        """Return the progress of a step, in steps of the first batch, at ``scale`` times that batch (Pollux, equation 7)."""
        return np.asarray((self.variance + self.signal) / (self.variance / scale + self.signal))


def batch_split(limits: BatchLimits, batch: int, devices: int) -> tuple[int, int]:
    """Split a batch into samples of a device and pass, and passes beyond the first.

    One device with more than the first batch makes at least two passes, because the noise is estimated between passes.
    """
    local, passes = _splits(limits, batch, np.array([devices]))
    return int(local[0]), int(passes[0])


def _splits(limits: BatchLimits, batch: int, devices: Ints) -> tuple[Ints, Ints]:
    """Apply ``batch_split`` to each number of devices."""
    local = np.ceil(batch / devices - _SLACK)
    passes = np.maximum(np.ceil(local / limits.local_most - _SLACK) - 1, 0)
    if batch > limits.first:
        passes = np.where(devices == 1, np.maximum(passes, 1), passes)
    passes = passes.astype(np.int64)
    atomic = np.ceil(local / (passes + 1) - _SLACK).astype(np.int64)
    return np.minimum(atomic, limits.most // (devices * (passes + 1))), passes


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches on several numbers of devices and their times, independent of the noise; arrays of shape (batches, n).

    Attributes:
        local: samples of a device and pass. ``passes``: passes beyond the first.
        scale: whole batch, in first batches.
        seconds: seconds of a step; inf: not legal or unknown.
    """

    local: Ints
    passes: Ints
    scale: Array
    seconds: Array

    @classmethod
    def of(cls, times: StepSeconds, limits: BatchLimits, nodes: Ints, devices: Ints) -> Batches:
        """Return the batches to try.

        Args:
            nodes, devices: arrays of one shape (n,), each at least 1.
        """
        if limits.fixed:
            local, passes = (part[None] for part in _splits(limits, limits.fixed, devices))
            legal = local >= 1
        else:
            local, passes = _candidates(limits, devices)
            legal = (local >= limits.local_least) & (local <= limits.local_most)
        many_nodes, many_devices = np.broadcast_to(nodes, local.shape), np.broadcast_to(devices, local.shape)
        step, accumulate = times.step_s(many_nodes, many_devices, np.maximum(local, 1))
        scale = many_devices * local * (passes + 1) / limits.first
        seconds = step + passes * accumulate
        known = legal & (scale > 0) & ~np.isnan(seconds)
        return cls(local, passes, np.maximum(scale, 1e-12), np.where(known, seconds, np.inf))

    def first(self, most: int) -> Batches:
        """Return the batches on 1 to ``most`` devices."""
        return Batches(self.local[:, :most], self.passes[:, :most], self.scale[:, :most], self.seconds[:, :most])

    def best(self, noise: Noise) -> tuple[Array, Ints, Ints]:
        """Return the best goodput on each number of devices; see ``best_batches``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            goodput = noise.gain(self.scale) / self.seconds
        best = goodput.argmax(axis=0), np.arange(goodput.shape[1])
        found = goodput[best]
        return found if np.isfinite(found).all() else np.nan_to_num(found, nan=0.0), self.local[best], self.passes[best]


class PackedGoodput:
    """Best goodput on 1, 2, ... devices with the same batches to try, for jobs of different noise.

    A batch of ``t`` seconds and scale ``s`` takes ``t + r t / s`` at the noise scale ``r``, up to a factor of the job: lines
    in ``r``. So the best batches are the lower envelope of these lines, which is found once many jobs ask.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches, self._asked = batches, 0
        self._envelope: tuple[Array, Array, Array] | None = None

    @property
    def most(self) -> int:
        """Largest number of devices."""
        return int(self._batches.scale.shape[1])

    def table(self, noise: Noise, most: int) -> Array:
        """Return the goodput on 1 to ``most`` devices; 0 where no batch is legal."""
        self._asked += 1
        if self._asked < ENVELOPE_FROM or not (noise.signal > 0 and noise.variance >= 0):
            return self._batches.first(most).best(noise)[0]
        if self._envelope is None:
            self._envelope = _envelope(self._batches)
        changes, scale, seconds = self._envelope
        best = (changes[:, :most] <= noise.variance / noise.signal).sum(axis=0), np.arange(most)
        return np.asarray(noise.gain(scale[best]) / seconds[best])

    def tables(self, noises: Sequence[Noise], most: int) -> Sequence[Array]:
        """Return the goodput of many jobs on 1 to ``most`` devices, as ``table`` does."""
        signal, variance = (np.array([getattr(noise, name) for noise in noises])[:, None] for name in ("signal", "variance"))
        usual = bool((signal > 0).all() and (variance >= 0).all())
        if self._asked + len(noises) < ENVELOPE_FROM or not usual:
            return [self.table(noise, most) for noise in noises]
        self._asked += len(noises)
        if self._envelope is None:
            self._envelope = _envelope(self._batches)
        changes, scale, seconds = self._envelope
        ratio, best = variance / signal, np.zeros((len(noises), most), np.int64)
        for change in changes[:, :most]:
            best += change <= ratio
        columns = np.arange(most)
        gain = (variance + signal) / (variance / scale[best, columns] + signal)
        return list(gain / seconds[best, columns])


ENVELOPE_FROM = 8
"""Number of questions from which the envelope costs less than it saves."""


class SizedGoodput:
    """Best goodput on some numbers of devices, for many jobs of different noise at once; as ``PackedGoodput``.

    Args:
        devices: numbers of devices, ascending. ``batches``: batches to try on each.
    """

    def __init__(self, devices: Ints, batches: Batches) -> None:
        self.devices = devices
        self._changes, self._scale, self._seconds = _envelope(batches)

    def rates(self, devices: Ints, signal: Array, variance: Array) -> Array:
        """Return the goodput of each job; shape (jobs, sizes).

        Args:
            devices: some of the numbers of devices, ascending. ``signal``, ``variance``: those of ``Noise``, above 0 and at
                least 0; shape (jobs,).
        """
        columns = self.devices.searchsorted(devices)
        signal, variance = signal[:, None], variance[:, None]
        ratio, best = variance / signal, np.zeros((len(signal), len(columns)), np.int16)
        for change in self._changes[:, columns]:
            best += change <= ratio
        scale, seconds = self._scale[best, columns], self._seconds[best, columns]
        return np.asarray((variance + signal) / (variance / scale + signal) / seconds)


def _envelope(batches: Batches) -> tuple[Array, Array, Array]:
    """Return where the best batch changes, by noise scale, and scale and seconds of the best batches in turn.

    Shapes (changes, n), (changes + 1, n) and (changes + 1, n). From one best batch the next is the larger one whose line is met
    first (gift wrapping).
    """
    flat, columns = batches.seconds, np.arange(batches.seconds.shape[1])
    slope = flat / batches.scale
    now = np.where(flat == flat.min(axis=0), slope, np.inf).argmin(axis=0)
    changes: list[Array] = []
    rows = [now]
    with np.errstate(divide="ignore", invalid="ignore"):
        while True:
            steeper = slope[now, columns] - slope
            met = np.where(steeper > 0, (flat - flat[now, columns]) / steeper, np.inf)
            met[np.isnan(met)] = np.inf
            following = met.argmin(axis=0)
            moment = met[following, columns]
            if np.isinf(moment).all():
                break
            now = np.where(np.isinf(moment), now, following)
            changes.append(moment)
            rows.append(now)
    chosen = np.array(rows)
    return np.array(changes).reshape(-1, len(columns)), batches.scale[chosen, columns], flat[chosen, columns]


class StepSeconds(ABC):
    """Step times on devices that fill ``nodes`` nodes. The results of one object never change."""

    @abstractmethod
    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Return the seconds of a step with its exchange, and of a step that only accumulates; arrays of one shape."""

    def packed_goodput(self, limits: BatchLimits, per_node: int, most: int, noise: Noise) -> Array:
        """Return the best goodput on 1 to ``most`` devices, packed on nodes of ``per_node``. Equal times share tables."""
        return self._shared_goodput(limits, per_node, most).table(noise, most)

    def packed_goodputs(self, limits: BatchLimits, per_node: int, most: int, noises: Sequence[Noise]) -> Sequence[Array]:
        """Return ``packed_goodput`` of many jobs."""
        return self._shared_goodput(limits, per_node, most).tables(noises, most)

    def _shared_goodput(self, limits: BatchLimits, per_node: int, most: int) -> PackedGoodput:
        known = self._goodputs.get((limits, per_node))
        if known is None or known.most < most:
            devices = np.arange(1, most + 1)
            batches = Batches.of(self, limits, -(-devices // per_node), devices)
            known = self._goodputs[limits, per_node] = PackedGoodput(batches)
        return known

    def goodput_on(self, limits: BatchLimits, per_node: int, devices: Ints, signal: Array, variance: Array) -> Array:
        """Return the best goodput of many jobs on some numbers of devices, packed on nodes; shape (jobs, sizes).

        Args:
            per_node, devices, signal, variance: as for ``SizedGoodput``.
        """
        known = self._sized.get((limits, per_node))
        if known is None or not np.isin(devices, known.devices).all():
            sizes = devices if known is None else np.union1d(devices, known.devices)
            known = self._sized[limits, per_node] = SizedGoodput(sizes, Batches.of(self, limits, -(-sizes // per_node), sizes))
        return known.rates(devices, signal, variance)

    @cached_property
    def _sized(self) -> dict[tuple[BatchLimits, int], SizedGoodput]:
        """Goodput of many jobs by limits and devices of a node."""
        return {}

    @cached_property
    def _goodputs(self) -> dict[tuple[BatchLimits, int], PackedGoodput]:
        """Goodput by limits and devices of a node."""
        return {}


def best_batches(times: StepSeconds, limits: BatchLimits, noise: Noise, nodes: Ints, devices: Ints) -> tuple[Array, Ints, Ints]:
    """Return the best goodput on each number of devices, in steps of the first batch a second, with its batch.

    Args:
        nodes, devices: arrays of one shape (n,), each at least 1.

    Returns:
        Goodput (0 if no batch is legal), samples of a device and pass, passes beyond the first; each of shape (n,).
    """
    return Batches.of(times, limits, nodes, devices).best(noise)


def _candidates(limits: BatchLimits, devices: Ints) -> tuple[Ints, Ints]:
    """Return samples of a device and pass, and passes beyond the first, of ``SIZES`` batches; shape (SIZES, n)."""
    least = np.maximum(limits.first, limits.local_least * devices).astype(float)
    most = np.maximum(least, limits.most)
    local = least * (most / least) ** np.linspace(0, 1, SIZES)[:, None] / devices
    passes = np.ceil(local / limits.local_most - _SLACK) - 1
    alone = (devices == 1) & (local > limits.first + _SLACK)
    passes = np.maximum(np.where(alone, np.maximum(passes, 1), passes), 0)
    sizes = np.ceil(local / (passes + 1) - _SLACK)
    return np.asarray(sizes, np.int64), np.asarray(passes, np.int64)
