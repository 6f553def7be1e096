"""Corrections from measured steps: the observed speed of links and hosts, and the ratio of measured to predicted seconds.

First the links: a fit to the measured waits gives their speed relative to the catalogue (``link_fit.py``). Then the host: a fit
to steps with different micro batches gives its time to launch a kernel (``host_fit.py``). Then an observation gives two ratios,
measured to predicted: of the time that the device works, and of the time that the step waits for the exchange. A Gaussian
process interpolates their logarithms (``gaussian_process.py``). Its mean is the model itself. Far from every observation the
prediction is unchanged. At an observation it is corrected as far as the number and the spread of the observations allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.calibration.constants import Efficiency, assumed
from paceline.calibration.observation import Observation
from paceline.calibration.uncertainty import Z80
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Device
from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Assumption, Prediction
from paceline.prediction.correction.gaussian_process import TASK, CovarianceKernel, Position, Process, coordinates
from paceline.prediction.correction.host_fit import TRIED, ObservedHost
from paceline.prediction.correction.link_fit import HIDDEN, ObservedLinks
from paceline.record import Event
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload

MOST = 320
"""Most observations in use at once. Beyond that, the nearest to the workload and the device are taken, evenly thinned."""
WORKING = (
    "compute",
    "memory bandwidth",
    "launch overhead",
    "stragglers",
    "input pipeline",
    "pipeline bubble",
    "expert imbalance",
)
"""Resources of ``Prediction.exposed`` that are the device's own work. The others are waits."""
WHOLE: float = assumed("whole_distance")
"""Distance from an observed step, in units of the coordinates, at which most information on its total is lost."""
LEAST_WORK: float = assumed("least_work")
"""Least share of a measured step that counts as work if its wait was not measured."""
ALIKE = math.log(2)
"""Largest logarithm of the ratio of two micro batches at which one step determines the other's work."""
TOLD: float = assumed("told_wait")
"""Share of the step by which a wait must differ from the model's to be inferred from steps on fewer nodes."""
WORK = CovarianceKernel(**assumed("ratio_work_kernel"))
WAIT = CovarianceKernel(**assumed("ratio_wait_kernel"))


Predict = Callable[[Workload, Cluster, Strategy, float], Prediction]
"""Prediction of a step for given seconds a kernel of the host; 0 takes those of the constants."""


@dataclass(frozen=True, slots=True)
class StepRatio:
    """Logarithms of measured to predicted seconds of one observed step.

    Attributes:
        wait: NaN if the wait was not measured.
        ambiguous: whether neither a measured wait nor a step on fewer nodes tells slow work from slow waiting.
    """

    work: float
    wait: float
    ambiguous: bool = False


class Correction:
    """Ratios of measured to predicted steps, and the links and hosts that explain them; made by ``fit``."""

    def __init__(self, observations: Sequence[Observation], constants: Efficiency, predict: Predict) -> None:
        self._seen, self._constants, self._predict = tuple(observations), constants, predict
        self._positions = [Position.of(seen.workload, seen.cluster, seen.strategy) for seen in observations]
        self._ratios: dict[int, StepRatio] = {}
        self._links = ObservedLinks(self._seen, self._on_usual_host)
        self._host = ObservedHost(self._seen, self._step_s, constants.host_s or TRIED[0])
        self._local: dict[tuple[tuple[str, ...], float], tuple[Process, Process, int]] = {}

    def cluster(self, given: Cluster) -> Cluster:
        """Return the cluster with links at the speed observed on the same links."""
        return self._links.of(given)

    def host_s(self, device: Device) -> float:
        """Return the seconds per kernel launch observed on hosts of the same device; 0 without them.

        Tuned software replays graphs of kernels, which the host launches at once.
        """
        return self._host.of(device.name) if self._constants.level == "ordinary" else 0.0

    def _predicted(self, seen: Observation, host_s: float) -> Prediction:
        """Return an observed step by the model with the observed links, if the host needs ``host_s`` per kernel launch."""
        return self._predict(seen.workload, self.cluster(seen.cluster), seen.strategy, host_s)

    def _on_usual_host(self, workload: Workload, cluster: Cluster, strategy: Strategy) -> Prediction:
        return self._predict(workload, cluster, strategy, 0.0)

    def _step_s(self, seen: Observation, host_s: float) -> float:
        return self._predicted(seen, host_s).step_time_s

    def is_of(self, constants: Efficiency) -> bool:
        """Return whether the correction is for a model with these constants."""
        return self._constants == constants

    def applied(self, prediction: Prediction, place: Position, whole: Prediction) -> Prediction:
        """Return a prediction with corrected times, the remaining range, and a sentence on the observations.

        Args:
            place: position of the step.
            whole: the same with every resource. If ``prediction`` has free ones, waits appear that their work hid. They are as
                long as that work was, so no free resource makes a step longer.
        """
        work, wait, largest = self._processes(place)
        here = coordinates([place], place.names)[0]
        (work_log, work_sigma), (wait_log, wait_sigma) = work.at(here), wait.at(here)
        exposed = min(prediction.exposed_comm_s, whole.exposed_comm_s)
        exchanges = prediction.comm_s + prediction.codec_s > 0
        floor = HIDDEN * whole.step_time_s if exchanges else 0.0
        working = (prediction.step_time_s - prediction.exposed_comm_s) * math.exp(work_log)
        waiting = max(0.0, (exposed + floor) * math.exp(wait_log) - floor)
        waiting += (prediction.exposed_comm_s - exposed) * math.exp(work_log)
        total = working + waiting
        sigma = math.hypot(working * work_sigma, waiting * wait_sigma) / total if total else 0.0
        # An observed step fixes the total, even if its wait was not measured.
        distance = ((work.places - here) ** 2).sum(-1).min(initial=math.inf)
        sigma = min(sigma, math.hypot(sigma * math.sqrt(-math.expm1(-distance / WHOLE**2)), WORK.noise))
        count = len(work.places)
        steps, devices = ("step" if count == 1 else "steps"), ("device" if largest == 1 else "devices")
        text = f"Corrected by {count} observed {steps} on up to {largest} {devices}"
        if place.devices > largest:
            text += f"; {place.devices} devices are beyond what was observed"
        if not self.knows(place):
            networks, devices_seen = ({position.names[k] for position in self._positions} for k in (0, 1))
            lacking = [name for name, seen in ((place.names[0], networks), (place.names[1], devices_seen)) if name not in seen]
            text += f"; {' and '.join(lacking) if lacking else 'this network on this device'} was not observed"
        if any(own.ambiguous and self._positions[index].names[:2] == place.names[:2] for index, own in self._ratios.items()):
            text += ". These steps' waits were not measured, and none ran on fewer nodes: work or waiting may be slow"
        return _scaled(prediction, working, waiting, math.exp(Z80 * sigma), Assumption("corrected", f"{text}."))

    def knows(self, place: Position) -> bool:
        """True if a step of the same network on the same device was observed."""
        return any(seen.names[:2] == place.names[:2] for seen in self._positions)

    def _processes(self, place: Position) -> tuple[Process, Process, int]:
        """Return the processes of work and of waiting near a step, and the most devices of their observations."""
        key = (place.names, place.numbers[0])
        if key not in self._local:
            chosen = self._nearest(place)
            places = coordinates([self._positions[i] for i in chosen], place.names)
            own = [self._ratio(i) for i in chosen]
            ratios = np.array([(ratio.work, ratio.wait) for ratio in own]).reshape(-1, 2)
            known = np.isfinite(ratios[:, 1])
            self._local[key] = (
                Process.of(WORK, places, ratios[:, 0]),
                Process.of(WAIT, places[known], ratios[known, 1]),
                max((self._positions[i].devices for i in chosen), default=0),
            )
        return self._local[key]

    def _nearest(self, place: Position) -> list[int]:
        """Return at most ``MOST`` observations: of this workload and device if there are any, else by similarity."""
        if len(self._seen) <= MOST:
            return list(range(len(self._seen)))
        table = coordinates([*self._positions, place], place.names)
        distance = ((table[:-1, :TASK] - table[-1, :TASK]) ** 2).sum(-1).round(6)
        order = np.lexsort((*table[:-1, TASK:7].T, distance))
        same = int((distance == distance.min()).sum())
        return list(order[np.linspace(0, same - 1, MOST).astype(int)] if same > MOST else order[:MOST])

    def _on_fewer_nodes(self, index: int) -> list[int]:
        """Return observed steps of the same network, device and nearly the same micro batch on fewer nodes."""
        seen, place = self._seen[index], self._positions[index]
        return [
            other
            for other, at in enumerate(self._positions)
            if at.names[:2] == place.names[:2]
            and self._seen[other].cluster.num_nodes < seen.cluster.num_nodes
            and self._seen[other].strategy.precision == seen.strategy.precision
            and abs(at.numbers[2] - place.numbers[2]) <= ALIKE
        ]

    def _told_wait(self, index: int, prediction: Prediction) -> float | None:
        """Infer the unmeasured wait of a step on several nodes from a measured step on fewer nodes.

        The network and nearly the micro batch are equal, so the device's work is equal too. None without such a step,
        or if the model's own wait explains the difference.
        """
        seen = self._seen[index]
        if seen.cluster.num_nodes == 1:
            return None
        smaller = self._on_fewer_nodes(index)
        if not smaller:
            return None
        base = min(smaller, key=lambda other: (self._distance(other, index), other))
        own = self._seen[base]
        there = self._predicted(own, self.host_s(own.cluster.device))
        waited = own.sync_s if own.sync_s is not None else min(there.exposed_comm_s, own.step_s / 2)
        work = (own.step_s - waited) / (there.step_time_s - there.exposed_comm_s)
        told = max(0.0, seen.step_s - work * (prediction.step_time_s - prediction.exposed_comm_s))
        return told if abs(told - prediction.exposed_comm_s) > TOLD * seen.step_s else None

    def _distance(self, first: int, second: int) -> tuple[float, float]:
        """Return two distances between steps, by their micro batches and by their devices."""
        one, two = (self._positions[index].numbers for index in (first, second))
        return abs(one[2] - two[2]), abs(one[3] + one[4] - two[3] - two[4])

    def _ratio(self, index: int) -> StepRatio:
        """Return the logarithms of measured to predicted work and wait of an observed step."""
        if index not in self._ratios:
            seen = self._seen[index]
            prediction = self._predicted(seen, self.host_s(seen.cluster.device))
            exposed, floor = prediction.exposed_comm_s, HIDDEN * prediction.step_time_s
            sync_s = self._told_wait(index, prediction) if seen.sync_s is None else seen.sync_s
            ambiguous = False
            if sync_s is None:
                worked, wait = max(seen.step_s - exposed, LEAST_WORK * seen.step_s), math.nan
                alone = seen.cluster.num_nodes > 1 and not self._on_fewer_nodes(index)
                ambiguous = alone and abs(seen.step_s - prediction.step_time_s) > TOLD * seen.step_s
            else:
                worked = max(seen.step_s - sync_s, HIDDEN * seen.step_s)
                wait = math.log((sync_s + floor) / (exposed + floor)) if seen.cluster.world_size > 1 else math.nan
            self._ratios[index] = StepRatio(math.log(worked / (prediction.step_time_s - exposed)), wait, ambiguous)
        return self._ratios[index]


def _scaled(prediction: Prediction, working: float, waiting: float, spread: float, taught: Assumption) -> Prediction:
    """Return the prediction with other seconds of work and of waiting."""
    step, before = working + waiting, prediction.step_time_s
    longer = step / before if before else 0.0
    worked = sum(seconds for name, seconds in prediction.exposed.items() if name in WORKING)
    waited = sum(prediction.exposed.values()) - worked
    factors = (working / worked if worked else 0.0, waiting / waited if waited else 0.0)
    exposed = {name: seconds * factors[name not in WORKING] for name, seconds in prediction.exposed.items()}
    if not waited:
        exposed["network"] = exposed.get("network", 0.0) + waiting
    return replace(
        prediction,
        step_time_s=step,
        # an observation never widens the range
        low_s=step / min(spread, before / prediction.low_s) if prediction.low_s else 0.0,
        high_s=step * min(spread, prediction.high_s / before) if before else 0.0,
        samples_per_s=prediction.samples_per_s * before / step if step else math.inf,
        compute_s=working,
        exposed_comm_s=waiting,
        comm_s=max(prediction.comm_s, waiting),
        exposed=exposed,
        timeline=lazy(lambda: tuple(_stretched(event, longer) for event in prediction.timeline)),
        memory_timelines=lazy(lambda: tuple(t.stretched(longer) for t in prediction.memory_timelines)),
        assumptions=lazy(lambda: (taught, *(a for a in prediction.assumptions if a.kind != "uncalibrated"))),
    )


def _stretched(event: Event, factor: float) -> Event:
    return replace(event, start_s=event.start_s * factor, duration_s=event.duration_s * factor)
