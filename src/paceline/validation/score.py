"""Errors of predictions, summarized over all points, and by model, device and scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.validation.case import Case, Keys, Skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted seconds of a step with the 80 % interval, seconds of its wait for the exchange, and bytes on a device."""

    step_s: float
    low_s: float
    high_s: float
    sync_s: float = 0.0
    memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class ScoredCase:
    """Row with a prediction by the model and by those baselines that have enough data."""

    case: Case
    estimate: Estimate
    baselines: Mapping[str, float]

    @property
    def error(self) -> float:
        """Relative error: |predicted - measured| / measured."""
        return abs(self.estimate.step_s / self.case.step_s - 1)

    @property
    def inside(self) -> bool:
        """True if the measurement is within the interval."""
        return self.estimate.low_s <= self.case.step_s <= self.estimate.high_s

    @property
    def sync_points(self) -> float | None:
        """Error of the share of the step that waits for the exchange, in percentage points."""
        if self.case.sync_s is None:
            return None
        return 100 * abs(self.estimate.sync_s / self.estimate.step_s - self.case.sync_s / self.case.step_s)

    @property
    def memory_error(self) -> float | None:
        """Relative error of the peak memory: |predicted - measured| / measured."""
        if not self.case.memory_bytes:
            return None
        return abs(self.estimate.memory_bytes / self.case.memory_bytes - 1)


def summary(points: Sequence[ScoredCase], cases: int, skips: Sequence[Skip]) -> dict[str, Any]:
    """Return the figures of one group: shares and errors are fractions (0.09 is 9 %), None without a point.

    A baseline applies to rows for which it has enough data: ``baseline_points`` counts them, and ``mape_on_baseline_rows`` is
        the error of the model itself on these.

    Args:
        cases: rows that can be modelled, scored or not.
        skips: rows that were not; the good ones lower the coverage.
    """
    every, points = points, [point for point in points if point.case.step_s]
    errors = np.array([point.error for point in points])
    good = cases + sum(skip.good for skip in skips)
    names = sorted({name for point in points for name in point.baselines})
    of_baseline = {name: [point for point in points if name in point.baselines] for name in names}
    sync = [p.sync_points for p in points if p.sync_points is not None]

    def of(figure: Callable[[Any], Any]) -> float | None:
        return float(figure(errors)) if len(errors) else None

    figures: dict[str, Any] = {
        "points": len(points),
        "coverage": cases / good if good else None,
        "mape": of(np.mean),
        "median": of(np.median),
        "p90": of(lambda e: np.quantile(e, 0.9)),
        "worst": of(np.max),
        "interval_share": float(np.mean([point.inside for point in points])) if points else None,
        "baselines": {name: _mape(name, of_baseline[name]) for name in names},
        "baseline_points": {name: len(of_baseline[name]) for name in names},
        "mape_on_baseline_rows": {name: float(np.mean([point.error for point in of_baseline[name]])) for name in names},
    }
    if sync:
        figures["sync_share_points"] = float(np.mean(sync))
    if memory := [p for p in every if p.memory_error is not None]:
        figures["memory_mape"] = float(np.mean([p.memory_error for p in memory]))
        figures["memory_points"], figures["memory_baselines"] = len(memory), _memory_baselines(memory)
    return figures


def _memory_baselines(points: Sequence[ScoredCase]) -> dict[str, float]:
    """Return the mean relative error of others' predictions of the peak memory, by name."""
    errors: dict[str, list[float]] = {}
    for point in points:
        for name, predicted in point.case.published_memory.items():
            errors.setdefault(name, []).append(abs(predicted / (point.case.memory_bytes or 1.0) - 1))
    return {name: float(np.mean(found)) for name, found in errors.items()}


def _mape(name: str, points: Sequence[ScoredCase]) -> float:
    return float(np.mean([abs(point.baselines[name] / point.case.step_s - 1) for point in points]))


def grouped(points: Sequence[ScoredCase], cases: Sequence[Case], skips: Sequence[Skip]) -> list[dict[str, Any]]:
    """Return ``summary`` of good rows by model, device and scale (number of devices), named by ``by`` and ``name``."""
    keys: Mapping[str, Callable[[Keys], Any]] = {
        "model": lambda k: k.model,
        "device": lambda k: k.device,
        "scale": lambda k: k.devices,
    }
    out = []
    for by, key in keys.items():
        names = {key(case.keys) for case in cases} | {key(skip.keys) for skip in skips}
        for name in sorted(names):
            chosen = [p for p in points if key(p.case.keys) == name]
            left = [s for s in skips if key(s.keys) == name]
            count = sum(key(c.keys) == name for c in cases)
            if count or any(skip.good for skip in left):
                out.append({"by": by, "name": str(name), **summary(chosen, count, left)})
    return out
