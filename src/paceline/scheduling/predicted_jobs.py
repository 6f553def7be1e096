"""Jobs of networks that the predictor knows: how each goes where nothing was measured, and what is believed of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import UserError
from paceline.hardware.catalogue import device as device_named
from paceline.hardware.precision import precision_on
from paceline.prediction import Predictor
from paceline.prediction.convergence import Convergence, epoch_samples, mlperf
from paceline.prediction.convergence import networks as converging
from paceline.scheduling.beliefs import Pool
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.predicted_speed import Asked, PredictedSpeed, Surfaces
from paceline.scheduling.profiles import Epochs, Profile
from paceline.strategy.usual_precision import usual_precision
from paceline.workload import Workload

LARGEST_LOCAL = 1024
"""Samples of a device and pass at most, where no batch is stated."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network by another name, with the choices of the strategy that its trainers made."""

    workload: Workload
    choices: tuple[tuple[str, str], ...] = ()


class Predictions:
    """What a predictor says of jobs on one cluster.

    Args:
        networks: of models whose name is no name that ``predict`` takes.
    """

    def __init__(self, fleet: Fleet, predictor: Predictor | None = None, networks: Mapping[str, Network] | None = None) -> None:
        self._fleet = fleet
        self._surfaces = Surfaces(predictor or Predictor())
        self._networks = dict(networks or {})
        self._known = {"": False}

    def knows(self, model: str) -> bool:
        """Whether a model is a network that ``predict`` takes."""
        if model not in self._known:
            try:
                self.network(model)
                self._known[model] = True
            except UserError:
                self._known[model] = False
        return self._known[model]

    def network(self, model: str) -> Network:
        """The network of a model. Raises UserError for a name that ``predict`` does not take."""
        if model not in self._networks:
            self._networks[model] = Network(Workload.named(model))
        return self._networks[model]

    def surface(self, model: str, group: NodeGroup, least: int, most: int) -> PredictedSpeed:
        """Steps on nodes of a type, with ``least`` to ``most`` samples of a device and pass.

        Raises:
            UserError: several nodes without a network; the least batch fits no such device.
        """
        if group.nodes > 1 and not group.network:
            example = f"{group.nodes}x{group.devices_per_node}x{group.device}, 100Gb/s"
            raise UserError(f"{model} on several nodes of {group.device}: the network is unknown", f"write {example!r}")
        network, device = self.network(model), device_named(group.device)
        choices = dict(network.choices)
        usual = usual_precision(network.workload, device).name
        choices["precision"] = str(precision_on(choices.get("precision", usual), device.precisions))
        return self._surfaces.of(
            Asked(network.workload, group, least, most, self._fleet.devices, tuple(sorted(choices.items())))
        )

    def pool(self, profiles: Mapping[str, Profile]) -> Pool:
        """What is believed of jobs before any ran.

        Args:
            profiles: whose batches bound those of their models.
        """
        groups = {group.device: group for group in self._fleet.groups}

        def surface(model: str, device: str) -> PredictedSpeed:
            if model in profiles:
                limits = profiles[model].limits(device)
                return self.surface(model, groups[device], limits.local_least, limits.local_most)
            return self.surface(model, groups[device], 1, LARGEST_LOCAL)

        return Pool(surface)

    def profile(self, job: Job) -> tuple[Job, Profile]:
        """The job with its first batch, and how it would go on each type that holds it.

        Raises:
            UserError: no work that can be counted; a batch that adapts though no critical batch of the network is known; no
                type whose memory holds it.
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
        epochs = Epochs(batches, steps * ones, steps / gain, math.nan * ones, ones, noise * ones)
        return replace(job, batch=job.batch or first), Profile(job.model, speeds, epochs)

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


__all__ = ["Network", "Predictions"]
