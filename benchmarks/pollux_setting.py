"""Setting of Pollux's simulator (OSDI 2021, section 5.3): cluster, jobs, its oracle for Optimus, and estimates with errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Ints
from paceline.calibration.constants import efficiency
from paceline.hardware.catalogue import device
from paceline.prediction import Predictor
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.run import JobRun
from paceline.scheduling.simulate.scenario import Knowledge
from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate, OnlineEstimate, SpeedEstimate
from paceline.scheduling.speeds.goodput import StepSeconds, batch_split
from paceline.scheduling.speeds.predicted_jobs import Predictions, profiled_networks
from paceline.scheduling.speeds.profiles import ModelProfile, packed

CLUSTER = "16x4xT4, 50Gb/s"
LARGEST_BATCH: Mapping[str, int] = {"ncf": 32768}
"""Pollux's simulator lets ncf train at its largest batch on one device."""


def predictions(fleet: Fleet) -> Predictions:
    """Predictions by constants that were fitted without any step on such devices."""
    chip = device(fleet.groups[0].device).chip
    return Predictions(fleet, Predictor(constants=efficiency("ordinary", without=chip)), profiled_networks())


class OptimusOracle(ProfiledRun):
    """Oracle with the granularity of the published one.

    It does not see the epoch in which a job is, so a job in its last epoch counts as one step. One device always makes two
    passes.
    """

    def seconds_left(self, device_type: int, most: int) -> Array:
        """As ``Outlook``."""
        epochs, batch = self.profile.epochs, self.job.batch
        last = epochs.count - 1
        steps = epochs.steps(batch, last) - epochs.steps(batch, self.epoch) if self.epoch < last else 1.0
        return self._step_table(device_type, most) * steps

    def _step_table(self, device_type: int, most: int) -> Array:
        group = self.fleet.groups[device_type]
        limits, speed = self._limits(group.device), self.profile.speed(group.device)
        table = np.full(most + 1, np.inf)
        for devices in range(1, most + 1):
            local, passes = batch_split(limits, self.job.batch, devices)
            if devices == 1 and passes == 0:
                local, passes = -(-local // 2), 1
            step, exchange = speed.measured(packed(devices, group.devices_per_node), local)
            table[devices] = np.nan_to_num(step + passes * (step - exchange), nan=np.inf)
        return table


class Distorted:
    """Another estimate with errors that stay for a job's life, to measure the cost of wrong predictions.

    Args:
        error: standard deviation of the logarithm of the step, for each number of devices; 0.2: about 20 %.
        seed: seed of the draw.
    """

    def __init__(self, beliefs: SpeedEstimate, error: float, seed: int, most: int = 4096) -> None:
        self._beliefs = beliefs
        draw = np.random.default_rng(seed)
        self._factors: Array = np.exp(error * draw.standard_normal(most + 1))
        self.scales = beliefs.scales
        self.source = None
        self._wrong: dict[str, _Times] = {}

    def spread(self, device: str) -> float:
        """As ``SpeedEstimate``."""
        return self._beliefs.spread(device)

    def times(self, device: str) -> StepSeconds | None:
        """As ``SpeedEstimate``."""
        times = self._beliefs.times(device)
        if times is None:
            return None
        if device not in self._wrong or self._wrong[device].times is not times:
            self._wrong[device] = _Times(times, self._factors)
        return self._wrong[device]

    def see(self, device: str, key: tuple[int, int, int], seconds: tuple[float, float]) -> None:
        """As ``SpeedEstimate``."""
        self._beliefs.see(device, key, seconds)

    def total(self) -> float | None:
        """As ``SpeedEstimate``."""
        return self._beliefs.total()

    def end(self, progress: float) -> None:
        """As ``SpeedEstimate``."""
        self._beliefs.end(progress)


class _Times(StepSeconds):
    """Steps times a factor of each number of devices."""

    def __init__(self, times: StepSeconds, factors: Array) -> None:
        self.times, self._factors = times, factors

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        factor = self._factors[devices]
        step, accumulate = self.times.step_s(nodes, devices, local)
        return step * factor, accumulate * factor


def jobs_for(policy: str, jobs: tuple[Job, ...]) -> list[Job]:
    """Jobs that its simulator gives a policy: Tiresias has tuned devices and batches, Optimus tuned batches, Pollux neither."""
    adapts = policy_named(policy).adapts
    fitted = []
    for job in jobs:
        alone = job.model in LARGEST_BATCH
        batch = LARGEST_BATCH[job.model] if alone and "batch" in adapts else job.batch
        devices = 1 if alone and adapts else job.devices
        fitted.append(replace(job, devices=devices, batch=batch, adapts=job.adapts & adapts))
    return fitted


def runs_for(
    policy: str,
    fleet: Fleet,
    profiles: Mapping[str, ModelProfile],
    knowledge: Knowledge = "online",
    pool: EstimatePool | None = None,
    *,
    work_stated: bool = True,
    error: float = 0.0,
    work_error: float = 0.0,
    seed: int = 0,
) -> Callable[[Job], JobRun]:
    """Function that creates runs with the truth of its simulator and the estimates of a policy.

    Args:
        pool: pool of ``predictions``, if the knowledge is ``predicted``.
        error: standard deviation of the logarithm of estimated steps. ``work_error``: the same for the remaining work.
    """
    draw = np.random.default_rng(seed)
    kind = OptimusOracle if policy == "optimus" else ProfiledRun

    def run(job: Job) -> JobRun:
        profile = profiles[job.model]
        beliefs: SpeedEstimate = OnlineEstimate()
        if knowledge == "measured" or kind is OptimusOracle:
            beliefs = MeasuredEstimate(profile)
        elif knowledge == "predicted":
            assert pool is not None
            beliefs = pool.of(job.model)
        if error:
            beliefs = Distorted(beliefs, error, int(draw.integers(1 << 31)))
        factor = float(np.exp(work_error * draw.standard_normal()))
        return kind(
            job,
            profile,
            fleet,
            adapts_batch="batch" in job.adapts,
            beliefs=beliefs,
            work_stated=work_stated,
            work_error=factor,
        )

    return run


__all__ = ["CLUSTER", "Distorted", "OptimusOracle", "jobs_for", "predictions", "runs_for"]
