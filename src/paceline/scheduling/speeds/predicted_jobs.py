"""Jobs of networks that the predictor knows: their speed without measurements, and the expected speed of all jobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.hardware.precision import precision_on
from paceline.prediction import Predictor, StepPredictor
from paceline.prediction.learning.convergence import Convergence, epoch_samples, mlperf
from paceline.prediction.learning.convergence import networks as converging
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.planned_run import PlannedRun
from paceline.scheduling.speeds.best_strategy import BestStrategies
from paceline.scheduling.speeds.expected_speed import EstimatePool
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed, SurfaceSpec, predicted_speed
from paceline.scheduling.speeds.profiles import EpochTable, ModelProfile
from paceline.scheduling.speeds.stated_strategy import parse_strategy
from paceline.strategy.usual_precision import usual_precision
from paceline.workload import Workload

LARGEST_LOCAL = 1024
"""Most samples of a device and pass, if no batch is stated."""


@dataclass(frozen=True, slots=True)
class Network:
    """Network under another name, with the choices of its usual training."""

    workload: Workload
    choices: tuple[tuple[str, Any], ...] = ()


def profiled_networks() -> dict[str, Network]:
    """Return networks and precisions of the models in the published profiles (Pollux, table 1; imagenet trains in fp16)."""
    bert = Workload.named("bert-base-squad", 384)
    return {
        "cifar10": Network(Workload.named("resnet-18-cifar"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "imagenet": Network(Workload.named("resnet-50"), (("optimizer", "momentum"), ("precision", "fp16"))),
        "bert": Network(bert, (("optimizer", "adam"), ("precision", "fp32"))),
        "yolov3": Network(Workload.named("yolov3"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "deepspeech2": Network(Workload.named("deepspeech2"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "ncf": Network(Workload.named("ncf"), (("optimizer", "adam"), ("precision", "fp32"))),
    }


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """Job with its steps, its best strategies on each type, and the least devices and types that hold it."""

    job: Job
    steps: float
    strategies: Mapping[str, BestStrategies]
    fleet: Fleet

    def run(self, job: Job, measured: bool) -> PlannedRun:
        """Create the run. ``job``: the job with what the policy may choose. ``measured``: True if policies know the truth."""
        spread = 0.0 if measured else next(iter(self.strategies.values())).relative_spread(job.devices)
        return PlannedRun(job, self.steps, self.strategies, self.fleet, spread)


class Predictions:
    """Predictions of jobs on one cluster.

    Args:
        networks: networks of models whose names ``predict`` does not take.
    """

    def __init__(
        self, fleet: Fleet, predictor: StepPredictor | None = None, networks: Mapping[str, Network] | None = None
    ) -> None:
        self._fleet = fleet
        self._predictor = predictor or Predictor()
        self._surfaces: dict[tuple[object, ...], PredictedSpeed] = {}
        self._networks = dict(networks or {})
        self._known = {"": False}
        self._searched: dict[tuple[object, ...], BestStrategies] = {}

    def knows(self, model: str) -> bool:
        """Return whether a model is a network that ``predict`` takes."""
        if model not in self._known:
            try:
                self.network(model)
                self._known[model] = True
            except UserError:
                self._known[model] = False
        return self._known[model]

    def network(self, model: str) -> Network:
        """Return the network of a model. Raises UserError for an unknown name."""
        if model not in self._networks:
            self._networks[model] = Network(Workload.named(model))
        return self._networks[model]

    def surface(self, model: str, group: NodeGroup, least: int, most: int, batches: Collection[int] = ()) -> PredictedSpeed:
        """Return the steps on nodes of a type, with ``least`` to ``most`` samples of a device and pass.

        Args:
            batches: batches of a device that are predicted exactly, not interpolated.

        Raises:
            UserError: several nodes without a network; the least batch does not fit the device.
        """
        key = model, group, least, most, tuple(sorted(batches))
        if key not in self._surfaces:
            self._check_network(model, group)
            choices = tuple(sorted(self._choices(model, group).items()))
            spec = SurfaceSpec(self.network(model).workload, group, least, most, self._fleet.devices, choices, key[-1])
            self._surfaces[key] = predicted_speed(spec, self._predictor)
        return self._surfaces[key]

    def _check_network(self, model: str, group: NodeGroup) -> None:
        if group.nodes > 1 and not group.network:
            example = f"{group.nodes}x{group.devices_per_node}x{group.device}, 100Gb/s"
            raise UserError(f"{model} on several nodes of {group.device}: the network is unknown", f"write {example!r}")

    def _choices(self, model: str, group: NodeGroup) -> dict[str, Any]:
        """Return the choices of the usual training, with the usual precision of the device if they name none."""
        network, device = self.network(model), group.hardware
        usual = usual_precision(network.workload, device).name
        precision = precision_on(dict(network.choices).get("precision", usual), device.precisions)
        return {**dict(network.choices), "precision": str(precision)}

    def _strategies(self, model: str, group: NodeGroup, batch: int, stated: Mapping[str, Any] | None) -> BestStrategies:
        """Return the best strategies, searched once per model and batch. ``stated``: fixed choices; None: all are free."""
        key = model, group, batch, None if stated is None else tuple(sorted(stated.items()))
        if key not in self._searched:
            self._check_network(model, group)
            usual, workload = self._choices(model, group), self.network(model).workload
            self._searched[key] = BestStrategies(workload, group, batch, usual, self._predictor, stated)
        return self._searched[key]

    def planned(self, job: Job, chooses: bool) -> PlannedJob:
        """Plan a job that states a strategy, or whose strategy may change.

        Args:
            chooses: True if the policy changes strategies. If not, a job without a stated strategy keeps the choices
                (``best_strategy.KEPT``) that are best on the devices it asks for.

        Raises:
            UserError: no batch, or an adaptive one; work that cannot be counted; no type on which the job fits the devices it
                asks for.
        """
        if "batch" in job.adapts:
            raise UserError(f"job {job.name!r} states or adapts a strategy and adapts its batch", "let it adapt one of the two")
        if not job.batch:
            raise UserError(f"job {job.name!r} states or adapts a strategy and no batch", "give its batch, over all devices")
        stated = parse_strategy(job.strategy) if job.strategy else None
        free = chooses and "strategy" in job.adapts
        strategies, refusals = {}, []
        for group in self._fleet.groups:
            if job.may_use(group.device) and job.devices <= group.devices:
                own = self._strategies(job.model, group, job.batch, None if free else stated)
                best = own.on(job.devices)
                if best is None:
                    refusals.append(own)
                    continue
                kept = stated is None and not free
                strategies[group.device] = self._strategies(job.model, group, job.batch, best.kept) if kept else own
        if not strategies:
            raise self._refused(job, refusals)
        if "devices" in job.adapts:
            tried = {size for own in strategies.values() for size in (*own.sizes, job.min_devices)}
            fitting = (n for n in sorted(tried) if n >= job.min_devices and any(own.on(n) for own in strategies.values()))
            job = replace(job, min_devices=min(next(fitting), job.devices))
        steps = self._samples(job, self._curve(job), job.batch) / job.batch
        return PlannedJob(replace(job, device_types=tuple(strategies)), steps, strategies, self._fleet)

    def _refused(self, job: Job, refusals: Sequence[BestStrategies]) -> UserError:
        """Return an error that says why a job cannot run on the requested devices, and how many it needs."""
        if not refusals:
            most = max((group.devices for group in self._fleet.groups if job.may_use(group.device)), default=0)
            has = f"the cluster has {most:,} of one type that it may use"
            raise UserError(f"job {job.name!r} asks for {job.devices:,} devices", has)
        whole = f"job {job.name!r}: {job.model} with batch {job.batch:,}" + (f" as {job.strategy}" if job.strategy else "")
        larger = (f"{n:,} {own.group.device}" for own in refusals for n in own.sizes if n > job.devices and own.on(n))
        instead = f"ask for {more}" if (more := next(larger, "")) else "give it another strategy, or larger devices"
        return UserError(f"{whole}: {refusals[0].why_not(job.devices)}", instead)

    def pool(self, profiles: Mapping[str, ModelProfile]) -> EstimatePool:
        """Return the expected speeds before any job ran.

        Args:
            profiles: profiles whose batches bound those of their models.
        """
        return EstimatePool(lambda model, device: self.believed(model, device, profiles))

    def believed(self, model: str, device: str, profiles: Mapping[str, ModelProfile]) -> PredictedSpeed:
        """Return the surface of a model on a type before any job ran, over the batches of its profile if it has one."""
        group = self._fleet.groups[self._fleet.types.index(device)]
        if model not in profiles:
            return self.surface(model, group, 1, LARGEST_LOCAL)
        limits = profiles[model].limits(device)
        return self.surface(model, group, limits.local_least, limits.local_most)

    def profile(self, job: Job) -> tuple[Job, ModelProfile]:
        """Return the job with its first batch, and its predicted profile on each type that holds it.

        Raises:
            UserError: work that cannot be counted; an adaptive batch without a known critical batch of the network; no type
                whose memory holds it.
        """
        speeds, refusals = {}, []
        for group in self._fleet.groups:
            if job.may_use(group.device):
                try:
                    speeds[group.device] = self.surface(job.model, group, 1, LARGEST_LOCAL)
                except UserError as error:
                    refusals.append(error)
        if not speeds:
            raise refusals[0] if refusals else UserError(f"job {job.name!r} may use no type of the cluster")
        widest = max(speed.local_range[1] for speed in speeds.values())
        first = job.min_batch or job.batch or widest * job.devices
        curve = self._curve(job)
        if "batch" in job.adapts and curve is None:
            raise UserError(
                f"job {job.name!r}: no critical batch of {job.model} is known, so its batch cannot be chosen",
                f"leave batch out of its adapts, or train one of {', '.join(converging())}",
            )
        most = max(job.max_batch, first) if "batch" in job.adapts else first
        steps = self._samples(job, curve, first) / first
        noise = curve.critical_batch / first if curve and math.isfinite(curve.critical_batch) else 1e12
        batches = np.array([first, most]) if most > first else np.array([first])
        scale = (batches / first)[:, None]
        gain = (noise + 1) / (noise / scale + 1)
        ones = np.ones_like(scale)
        epochs = EpochTable(batches, steps * ones, steps / gain, math.nan * ones, ones, noise * ones)
        return replace(job, batch=job.batch or first), ModelProfile(job.model, speeds, epochs)

    def _curve(self, job: Job) -> Convergence | None:
        name = self.network(job.model).workload.name
        return mlperf(name) if name in converging() else None

    def _samples(self, job: Job, curve: Convergence | None, first: int) -> float:
        if job.samples:
            return job.samples
        if job.steps:
            return job.steps * (job.batch or first)
        name = self.network(job.model).workload.name
        if job.epochs and (count := epoch_samples(name)):
            return job.epochs * count
        if job.target and curve is not None:
            return curve.samples(first, beyond=True)
        raise UserError(
            f"job {job.name!r}: its work cannot be counted in samples", "give samples or steps; epochs need a known data set"
        )
