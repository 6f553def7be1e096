"""Expected steps of jobs: measured, observed by the job itself, or predicted and corrected by all jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Protocol

import numpy as np

from paceline.scheduling.speeds.corrected_speed import CorrectedSpeed, ObservedSteps
from paceline.scheduling.speeds.fitted_speed import FittedSpeed
from paceline.scheduling.speeds.goodput import StepSeconds
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed
from paceline.scheduling.speeds.profiles import ModelProfile


class SpeedEstimate(Protocol):
    """Expected steps of one job."""

    @property
    def scales(self) -> bool:
        """True if the estimate covers numbers of devices that the job never ran on."""
        ...

    @property
    def source(self) -> object | None:
        """Object that alone determines the steps, shared by jobs; None: they are those of this job."""
        ...

    def times(self, device: str) -> StepSeconds | None:
        """Return the steps on a device type, the same object until they change; None if unknown."""
        ...

    def spread(self, device: str) -> float:
        """Return half the 80 % range of a step, relative to it, at the least certain number of devices; 0 if measured."""
        ...

    def see(self, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """Add an observation: (nodes, devices, local batch), and seconds of (step, its exchange)."""
        ...

    def total(self) -> float | None:
        """Return the mean total progress of ended jobs of this kind; None if no such job has ended."""
        ...

    def end(self, progress: float) -> None:
        """Record that the job ended after this much progress."""
        ...


class MeasuredEstimate:
    """Estimate by the measured profile itself."""

    scales = True

    def __init__(self, profile: ModelProfile) -> None:
        self._profile = profile

    @property
    def source(self) -> object | None:
        """The profile; see ``SpeedEstimate``."""
        return self._profile

    def times(self, device: str) -> StepSeconds | None:
        """Return the steps on a device type; see ``SpeedEstimate``."""
        return self._profile.speeds.get(device)

    def spread(self, device: str) -> float:
        """Return the relative range of a step; see ``SpeedEstimate``."""
        return 0.0

    def see(self, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """Do nothing, because all is known."""

    def total(self) -> float | None:
        """Return the mean total progress of ended jobs of this kind; see ``SpeedEstimate``."""
        return None

    def end(self, progress: float) -> None:
        """Do nothing, because all is known."""


class OnlineEstimate:
    """Estimate by the steps that the job observed since it began (Pollux, OSDI 2021, section 4.1)."""

    scales = False
    source: object | None = None

    def __init__(self) -> None:
        self._seen: dict[str, dict[tuple[int, int, int], tuple[float, float]]] = defaultdict(dict)
        self._fits: dict[str, FittedSpeed] = {}

    def times(self, device: str) -> StepSeconds | None:
        """Return the steps on a device type; see ``SpeedEstimate``."""
        return self._fits.get(device)

    def spread(self, device: str) -> float:
        """Return the relative range of a step; see ``SpeedEstimate``."""
        return 0.0

    def see(self, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """Add an observation; see ``SpeedEstimate``."""
        if key not in self._seen[device]:
            self._seen[device][key] = seconds
            self._fits[device] = FittedSpeed.of(self._seen[device])

    def total(self) -> float | None:
        """Return the mean total progress of ended jobs of this kind; see ``SpeedEstimate``."""
        return None

    def end(self, progress: float) -> None:
        """Do nothing, because other jobs do not learn from this one."""


class EstimatePool:
    """Predictions of models on one cluster, corrected by the reports of all jobs.

    Steps of a model correct its computing and its exchange. For a model without exchanges, those of other models are used.
    Ended jobs give the length of jobs of their model.
    """

    def __init__(self, surface: Callable[[str, str], PredictedSpeed]) -> None:
        """Create a pool. ``surface`` predicts a model on a device, and is called once for each."""
        self._surface = cache(surface)
        self._seen: dict[tuple[str, str], dict[tuple[int, int, int], tuple[float, float]]] = defaultdict(dict)
        self._observed: dict[tuple[str, str], ObservedSteps] = {}
        self._corrected: dict[tuple[str, str], CorrectedSpeed] = {}
        self._stale: set[tuple[str, str]] = set()
        self._spreads: dict[tuple[str, str], tuple[StepSeconds, float]] = {}
        self._ended: dict[str, list[float]] = defaultdict(list)
        self._estimates: dict[str, PredictedEstimate] = {}

    def of(self, model: str) -> PredictedEstimate:
        """Return the estimate for jobs of that model, always the same object."""
        if model not in self._estimates:
            self._estimates[model] = PredictedEstimate(self, model)
        return self._estimates[model]

    def spread(self, model: str, device: str) -> float:
        """Return the relative range of a step; see ``SpeedEstimate``.

        Before the model ran on the type, this is the predicted range. Afterwards its computing is known. For an exchange that
        was never seen, within a node or between nodes, the range is scaled by the share of the exchange in a step, at the
        largest batch on a whole node or on all nodes.
        """
        surface, times = self._surface(model, device), self.times(model, device)
        if not self._seen[model, device]:
            return surface.relative_spread
        if (model, device) not in self._spreads or self._spreads[model, device][0] is not times:
            exchanged = {nodes > 1 for nodes, devices, _ in self._seen[model, device] if devices > 1}
            per_node, most = surface.group.devices_per_node, int(surface.sizes[-1])
            widest = {count > per_node: count for count in (min(per_node, most), most)}
            counts = np.array([count for between, count in widest.items() if between not in exchanged], np.int64)
            step, compute = times.step_s(-(-counts // per_node), counts, np.full_like(counts, surface.local_range[1]))
            share = float((1 - compute / step).max(initial=0.0))
            self._spreads[model, device] = times, share * surface.relative_spread
        return self._spreads[model, device][1]

    def times(self, model: str, device: str) -> StepSeconds:
        """Return the steps on a device type; see ``SpeedEstimate``."""
        key = (model, device)
        if key not in self._corrected or key in self._stale:
            there = [observed for (_, other), observed in self._observed.items() if other == device]
            corrected = CorrectedSpeed.of(self._surface(model, device), self._observed.get(key), there)
            self._stale.discard(key)
            if key not in self._corrected or not self._corrected[key].alike(corrected):
                self._corrected[key] = corrected
        return self._corrected[key]

    def see(self, model: str, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """Add an observation; see ``SpeedEstimate``."""
        seen = self._seen[model, device]
        if key in seen:
            return
        seen[key] = seconds
        self._observed[model, device] = ObservedSteps.of(self._surface(model, device), seen)
        self._spreads.pop((model, device), None)
        self._stale.update(other for other in self._corrected if other[1] == device)

    def total(self, model: str) -> float | None:
        """Return the mean total progress of ended jobs of this kind; see ``SpeedEstimate``."""
        return float(np.mean(self._ended[model])) if self._ended[model] else None

    def end(self, model: str, progress: float) -> None:
        """Record the end of the job; see ``SpeedEstimate``."""
        self._ended[model].append(progress)


class PredictedEstimate:
    """Estimate of a model in a pool, for all its jobs."""

    scales = True

    @property
    def source(self) -> object | None:
        """The estimate itself; see ``SpeedEstimate``."""
        return self

    def __init__(self, pool: EstimatePool, model: str) -> None:
        self._pool, self._model = pool, model

    def times(self, device: str) -> StepSeconds | None:
        """Return the steps on a device type; see ``SpeedEstimate``."""
        return self._pool.times(self._model, device)

    def spread(self, device: str) -> float:
        """Return the relative range of a step; see ``SpeedEstimate``."""
        return self._pool.spread(self._model, device)

    def see(self, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """Add an observation; see ``SpeedEstimate``."""
        self._pool.see(self._model, device, key, seconds)

    def total(self) -> float | None:
        """Return the mean total progress of ended jobs of this kind; see ``SpeedEstimate``."""
        return self._pool.total(self._model)

    def end(self, progress: float) -> None:
        """Record the end of the job; see ``SpeedEstimate``."""
        self._pool.end(self._model, progress)
