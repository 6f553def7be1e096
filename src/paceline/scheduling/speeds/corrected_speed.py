"""Predicted steps, corrected by the steps that jobs reported.

Computing is corrected by the batch of a device. A step shows only the part of an exchange that computing does not hide, so the
whole length is fitted: ``step = (compute^g + exchange^g)^(1/g)`` (Pollux, OSDI 2021, equation 11). One overlap ``g`` holds for
all models on a device type, and the ratio of measured to predicted exchange depends on the number of devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.speeds.goodput import StepSeconds
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed

OVERLAPS = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""Values of g that are tried, from 1 (nothing hidden) to 8 (nearly all hidden)."""
ALIKE = 1e-6
"""Tolerance of errors: of overlaps that fit equally well, the least is used."""
LEAST_SHARE = 0.02
"""Least share of an exchange in its step from which its length can be inferred."""

Curve = tuple[tuple[float, ...], tuple[float, ...]]
"""Points of a curve: logarithm of a size, ascending, and logarithm of measured / predicted there."""
NONE: Curve = ((), ())
Seen = Mapping[tuple[int, int, int], tuple[float, float]]
"""(nodes, devices, local batch) -> seconds of (step, visible part of its exchange)."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios of measured to predicted seconds; empty without observations.

    Attributes:
        compute: by the batch of a device.
        within, between: exchanges inside a node and between nodes, by devices.
    """

    compute: Curve = NONE
    within: Curve = NONE
    between: Curve = NONE

    def completed(self, others: Sequence[Ratios]) -> Ratios:
        """Return the ratios with the mean ratio of other models for exchanges without observations."""
        within = self.within if self.within[0] else _mean([other.within for other in others])
        between = self.between if self.between[0] else _mean([other.between for other in others])
        return Ratios(self.compute, within, between)


@dataclass(frozen=True, slots=True)
class ObservedSteps:
    """Ratios fitted to the reported steps of one model on one type, for each overlap of ``OVERLAPS``.

    Attributes:
        errors: sums of squared errors of the logarithm of the steps.
    """

    ratios: tuple[Ratios, ...]
    errors: tuple[float, ...]

    @classmethod
    def of(cls, surface: PredictedSpeed, seen: Seen) -> ObservedSteps:
        """Fit ratios to the observations of a model whose prediction is ``surface``."""
        nodes, devices, local = np.array(list(seen), dtype=np.int64).T
        step, shown = np.array(list(seen.values()), dtype=float).T
        compute = step - shown
        by_batch = _curve(local, np.log(compute / surface.step_s(nodes, devices, local)[1]), np.ones(len(local)))
        expected, share = whole_exchange(surface, nodes, devices), shown / step
        many = (devices > 1) & (expected > 0)
        ratios, errors = [], []
        for overlap in OVERLAPS:
            whole = (np.maximum(step**overlap - compute**overlap, 1e-300)) ** (1 / overlap)
            curves, error = [], 0.0
            for mask in (many & (nodes == 1), many & (nodes > 1)):
                tells = mask & (share > LEAST_SHARE)
                curve = _curve(devices[tells], np.log(whole[tells] / expected[tells]), share[tells] ** 2)
                curves.append(curve)
                if curve[0]:
                    again = _step_s(compute[mask], expected[mask] * _factor(curve, devices[mask]), overlap)
                    error += float((np.log(again / step[mask]) ** 2).sum())
            ratios.append(Ratios(by_batch, *curves))
            errors.append(error)
        return cls(tuple(ratios), tuple(errors))


@dataclass(frozen=True, eq=False)
class CorrectedSpeed(StepSeconds):
    """Predicted surface multiplied by observed ratios."""

    surface: PredictedSpeed
    ratios: Ratios
    overlap: float = 1.0

    @classmethod
    def of(cls, surface: PredictedSpeed, own: ObservedSteps | None, all_models: Sequence[ObservedSteps]) -> CorrectedSpeed:
        """Correct the surface with the overlap that best fits all models on the type.

        Args:
            own: observations of this model; None: it never ran.
            all_models: observations of all models on this type.
        """
        errors = np.sum([observed.errors for observed in all_models], axis=0) if all_models else np.zeros(len(OVERLAPS))
        best = int((errors <= errors.min() + ALIKE).argmax())
        ratios = own.ratios[best] if own else Ratios()
        return cls(surface, ratios.completed([observed.ratios[best] for observed in all_models]), OVERLAPS[best])

    def alike(self, other: CorrectedSpeed) -> bool:
        """Return whether the other corrects the same surface equally."""
        return self.surface is other.surface and (self.ratios, self.overlap) == (other.ratios, other.overlap)

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        """Return the seconds of a step; see ``StepSeconds``."""
        predicted, compute = self.surface.step_s(nodes, devices, local)
        corrected = compute * _factor(self.ratios.compute, local)
        step = corrected + np.maximum(predicted - compute, 0)
        whole = whole_exchange(self.surface, nodes, devices)
        for curve, mask in ((self.ratios.within, (nodes == 1) & (devices > 1)), (self.ratios.between, nodes > 1)):
            if curve[0] and mask.any():
                step = np.where(mask, _step_s(corrected, whole * _factor(curve, devices), self.overlap), step)
        return step, corrected


def whole_exchange(surface: PredictedSpeed, nodes: Ints, devices: Ints) -> Array:
    """Return the predicted seconds of a whole exchange: its exposed part at the least batch, which hides the least."""
    step, compute = surface.step_s(nodes, devices, np.full_like(devices, surface.local_range[0]))
    return np.maximum(step - compute, 0.0)


def _step_s(compute: Array, exchange: Array, overlap: float) -> Array:
    return np.asarray((compute**overlap + exchange**overlap) ** (1 / overlap))


def _curve(sizes: Ints, logs: Array, weights: Array) -> Curve:
    """Return the weighted mean of the values at each size."""
    distinct, where = np.unique(sizes, return_inverse=True)
    means = np.bincount(where, logs * weights, len(distinct)) / np.bincount(where, weights, len(distinct))
    return tuple(map(math.log, distinct.tolist())), tuple(means.tolist())


def _mean(curves: Sequence[Curve]) -> Curve:
    values = [float(np.mean(logs)) for _, logs in curves if logs]
    return ((0.0,), (float(np.mean(values)),)) if values else NONE


def _factor(curve: Curve, sizes: Ints) -> Array | float:
    return np.exp(np.interp(np.log(sizes), *curve)) if curve[0] else 1.0
