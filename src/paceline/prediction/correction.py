"""What measured steps teach: by how much the model is off, near what was measured and away from it.

An observation gives two ratios, measured to predicted: of the time that the device works, and of the time that the step
waits for the exchange. Their logarithms are interpolated by a Gaussian process (Rasmussen and Williams 2006, Gaussian
Processes for Machine Learning, equations 2.23 to 2.26) whose mean is the model itself: far from every observation its
prediction stays as it was, and at one it is corrected by all that the number and the spread of the observations allow. What two
steps have in common falls with the distance of their micro batches, devices in a node and nodes, and with the workload and the
device being others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.lazy import lazy
from paceline.record import Event, RunRecord
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

if TYPE_CHECKING:
    from paceline.prediction.predict import Prediction

Array = NDArray[np.float64]
Predict = Callable[[Workload, Cluster, Strategy], "Prediction"]

MOST = 320
"""Observations used at once; of more, those nearest to the workload and the device that are asked for, evenly thinned."""
Z80 = 1.2816
"""Standard deviations on either side of the median that hold 80 % of a normal distribution."""
HIDDEN = 0.01
"""Share of the step below which a wait cannot be told from none."""
WORKING = ("compute", "memory bandwidth", "launch overhead", "stragglers", "input pipeline")
"""Resources of ``Prediction.exposed`` that the device itself works with; the others are waited for."""
LEAST_WORK = 0.3
"""Share of a measured step that is taken for work at least, where nobody measured the wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A measured step: seconds of it, and of the part that waited for the exchange where that was measured."""

    workload: Workload
    cluster: Cluster
    strategy: Strategy
    step_s: float
    sync_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.step_s < math.inf:
            raise UserError(f"an observed step of {self.step_s} s", "give seconds above 0")
        if self.sync_s is not None and not 0 <= self.sync_s <= self.step_s:
            raise UserError(f"{self.sync_s} s of waiting in a step of {self.step_s} s", "give at most the step")

    @classmethod
    def of_record(cls, record: RunRecord, workload: Workload, cluster: Cluster) -> Observation:
        """What a run of ``workload`` on ``cluster`` measured."""
        given: dict[str, Any] = {**record.strategy, "options": tuple(dict(record.strategy.get("options", {})).items())}
        return cls(
            workload=workload,
            cluster=cluster,
            strategy=Strategy(**given),
            step_s=record.step_time_s,
            sync_s=record.exposed_comm_s,
        )


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Covariance of two log ratios: variances of what all steps share, of what those of one workload and device share
    everywhere and of what they share near each other; and of one measurement."""

    every: float
    task: float
    near: float
    noise: float

    def of(self, one: Array, other: Array) -> Array:
        """Covariances of the steps at coordinates ``one`` (n, 10) with those at ``other`` (m, 10)."""
        square = (one[:, None, :] - other[None, :, :]) ** 2
        task, place = square[..., :TASK].sum(-1), square[..., TASK:].sum(-1)
        shared: Array = self.every**2 + np.exp(-task / 2) * (self.task**2 + self.near**2 * np.exp(-place / 2))
        return shared

    @property
    def prior(self) -> float:
        """Standard deviation where nothing is near."""
        return math.sqrt(self.every**2 + self.task**2 + self.near**2)


WORK = _Kernel(every=0.1, task=0.2, near=0.25, noise=0.05)
WAIT = _Kernel(every=0.2, task=0.6, near=0.7, noise=0.3)
TASK = 4
"""How many coordinates say which workload and device it is; the others say how it is run."""
_SCALES = np.array([1.5, 1.5, 0.7, 0.7, 1.5, 1.5, 1.5, 0.7, 0.7, 0.7])
"""Distance at which coordinates count as one apart: log FLOPs a sample, log parameters, other workload, other device; log
micro batch, log devices in a node, log nodes, several nodes, other links, other precision or division of the work."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a step lies: four names of which another is one unit away, and numbers (see ``_SCALES``)."""

    names: tuple[str, str, str, str]
    numbers: tuple[float, float, float, float, float, float]

    @classmethod
    def of(cls, workload: Workload, cluster: Cluster, strategy: Strategy) -> _Place:
        several = cluster.num_nodes > 1
        division = (strategy.precision, strategy.compression, strategy.exchange, strategy.sharding, strategy.recompute)
        return cls(
            (workload.name, cluster.device.name, cluster.network.name if several else "", str(division)),
            (
                math.log(max(workload.flops_per_sample, 1.0)),
                math.log(max(workload.num_parameters, 1)),
                math.log(strategy.micro_batch_size),
                math.log(cluster.devices_per_node),
                math.log(cluster.num_nodes),
                float(several),
            ),
        )

    @property
    def devices(self) -> int:
        return round(math.exp(self.numbers[3] + self.numbers[4]))


def _coordinates(places: Sequence[_Place], names: tuple[str, ...]) -> Array:
    """The places as seen from those names, in units of ``_SCALES`` (n, 10)."""
    numbers = np.array([place.numbers for place in places]).reshape(-1, 6)
    alike = [[one != here for one, here in zip(place.names, names, strict=True)] for place in places]
    other = np.array(alike, dtype=np.bool_).reshape(-1, 4)
    # the network of a single node is no other network
    several = numbers[:, 5] > 0
    link = (other[:, 2] & several & (names[2] != "")).astype(float)
    table = (numbers[:, 0], numbers[:, 1], other[:, 0], other[:, 1], *numbers[:, 2:].T, link, other[:, 3])
    return np.asarray(np.stack(table, axis=1) / _SCALES)


@dataclass(frozen=True, slots=True)
class _Process:
    """A Gaussian process given its observations."""

    kernel: _Kernel
    places: Array
    weights: Array
    inverse: Array

    @classmethod
    def of(cls, kernel: _Kernel, places: Array, ratios: Array) -> _Process:
        covariance = kernel.of(places, places) + kernel.noise**2 * np.eye(len(places))
        inverse: Array = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        return cls(kernel, places, inverse @ ratios, inverse)

    def at(self, place: Array) -> tuple[float, float]:
        """Mean and standard deviation of the log ratio at ``place``, a measurement's own noise included."""
        if not len(self.places):
            return 0.0, math.hypot(self.kernel.prior, self.kernel.noise)
        shared = self.kernel.of(place[None], self.places)[0]
        variance = self.kernel.prior**2 - float(shared @ self.inverse @ shared)
        return float(shared @ self.weights), math.sqrt(max(variance, 0.0) + self.kernel.noise**2)


class Correction:
    """What observations teach; ``fit`` makes one, ``predict`` takes it."""

    def __init__(self, observations: Sequence[Observation], predict: Predict) -> None:
        self._seen, self._predict = tuple(observations), predict
        self._places = [_Place.of(one.workload, one.cluster, one.strategy) for one in observations]
        self._ratios: dict[int, tuple[float, float]] = {}
        self._local: dict[tuple[tuple[str, ...], float], tuple[_Process, _Process, int]] = {}

    def applied(self, made: Prediction, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        """A prediction with its times corrected, its range from what the observations leave open, and a sentence on them."""
        place = _Place.of(workload, cluster, strategy)
        work, wait, largest = self._processes(place)
        here = _coordinates([place], place.names)[0]
        (work_log, work_sigma), (wait_log, wait_sigma) = work.at(here), wait.at(here)
        exposed = made.exposed_comm_s
        floor = HIDDEN * made.step_time_s if cluster.world_size > 1 else 0.0
        working = (made.step_time_s - exposed) * math.exp(work_log)
        waiting = max(0.0, (exposed + floor) * math.exp(wait_log) - floor)
        sigma = math.hypot(working * work_sigma, waiting * wait_sigma) / (working + waiting)
        said = f"Corrected by {len(work.places)} observed steps on up to {largest} devices"
        if cluster.world_size > largest:
            said += f"; {cluster.world_size} devices are beyond what was observed"
        return _scaled(made, working, waiting, math.exp(Z80 * sigma), f"{said}.")

    def _processes(self, place: _Place) -> tuple[_Process, _Process, int]:
        """The processes of work and of waiting around a step, and the most devices of their observations."""
        key = (place.names, place.numbers[0])
        if key not in self._local:
            chosen = self._nearest(place)
            places = _coordinates([self._places[i] for i in chosen], place.names)
            ratios = np.array([self._ratio(i) for i in chosen]).reshape(-1, 2)
            known = np.isfinite(ratios[:, 1])
            self._local[key] = (
                _Process.of(WORK, places, ratios[:, 0]),
                _Process.of(WAIT, places[known], ratios[known, 1]),
                max((self._places[i].devices for i in chosen), default=0),
            )
        return self._local[key]

    def _nearest(self, place: _Place) -> list[int]:
        """At most ``MOST`` observations: of this workload and device, else by how much they have in common."""
        if len(self._seen) <= MOST:
            return list(range(len(self._seen)))
        coordinates = _coordinates([*self._places, place], place.names)
        distance = ((coordinates[:-1, :TASK] - coordinates[-1, :TASK]) ** 2).sum(-1).round(6)
        order = np.lexsort((*coordinates[:-1, TASK:7].T, distance))
        same = int((distance == distance.min()).sum())
        return list(order[np.linspace(0, same - 1, MOST).astype(int)] if same > MOST else order[:MOST])

    def _ratio(self, index: int) -> tuple[float, float]:
        """Logarithms of measured to predicted work and wait; no number where the wait was not measured."""
        if index not in self._ratios:
            seen = self._seen[index]
            made = self._predict(seen.workload, seen.cluster, seen.strategy)
            exposed, floor = made.exposed_comm_s, HIDDEN * made.step_time_s
            if seen.sync_s is None:
                worked, wait = max(seen.step_s - exposed, LEAST_WORK * seen.step_s), math.nan
            else:
                worked = max(seen.step_s - seen.sync_s, HIDDEN * seen.step_s)
                wait = math.log((seen.sync_s + floor) / (exposed + floor)) if seen.cluster.world_size > 1 else math.nan
            self._ratios[index] = (math.log(worked / (made.step_time_s - exposed)), wait)
        return self._ratios[index]


def fit(observations: Sequence[Observation], predict: Predict | None = None) -> Correction:
    """What the observations teach.

    Args:
        predict: what they are compared with, and what will be corrected; by default ``paceline.prediction.predict``. An
            observation is predicted when it is first needed, and what ``predict`` raises is raised then.
    """
    if predict is None:
        from paceline.prediction.predict import predict as model

        predict = model
    return Correction(observations, predict)


def _scaled(made: Prediction, working: float, waiting: float, spread: float, said: str) -> Prediction:
    """The prediction with other seconds of work and of waiting."""
    step, before = working + waiting, made.step_time_s
    worked = sum(seconds for name, seconds in made.exposed.items() if name in WORKING)
    waited = sum(made.exposed.values()) - worked
    factors = (working / worked if worked else 0.0, waiting / waited if waited else 0.0)
    exposed = {name: seconds * factors[name not in WORKING] for name, seconds in made.exposed.items()}
    if not waited:
        exposed["network"] = exposed.get("network", 0.0) + waiting
    return replace(
        made,
        step_time_s=step,
        low_s=step / spread,
        high_s=step * spread,
        samples_per_s=made.samples_per_s * before / step,
        compute_s=working,
        exposed_comm_s=waiting,
        comm_s=max(made.comm_s, waiting),
        exposed=exposed,
        timeline=lazy(lambda: tuple(_stretched(event, step / before) for event in made.timeline)),
        assumptions=lazy(lambda: (*made.assumptions, said)),
    )


def _stretched(event: Event, factor: float) -> Event:
    return replace(event, start_s=event.start_s * factor, duration_s=event.duration_s * factor)
