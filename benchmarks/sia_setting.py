"""Setting of Sia's simulator (SOSP 2023, section 4): cluster and jobs, on which its published figures depend.

Steps are longer than measured, the cost of a start depends on the model, and a job that moves within a type pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import efficiency
from paceline.hardware.catalogue import device
from paceline.prediction import Predictor
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.solvers.time_shares import RoundRules
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate, OnlineEstimate, SpeedEstimate
from paceline.scheduling.speeds.goodput import BatchLimits, StepSeconds, batch_split
from paceline.scheduling.speeds.goodput_tables import MissingTable
from paceline.scheduling.speeds.predicted_jobs import Predictions, profiled_networks
from paceline.scheduling.speeds.profiles import ModelProfile, packed

CLUSTER = "6x4xT4 + 2x8xA100 SXM 40GB + 3x8xRTX 2080 Ti"
"""Types in the order of its simulator, which projects other types from the first that a job has run on."""
HOMOGENEOUS = "16x4xT4"
RESTART_S: Mapping[str, float] = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}
BELIEVED_RESTART_S: Mapping[str, float] = {"cifar10": 30.0, "yolov3": 45.0}
"""Restart cost assumed by its policy, if that differs."""
SLOWDOWN: Mapping[str, float] = {
    "cifar10": 1.8,
    "imagenet": 1.2,
    "yolov3": 1.2,
    "bert": 1.2,
    "deepspeech2": 1.2,
    "ncf": 1.5,
}
"""Factor by which true steps are longer than in the profile."""
NETWORKS: Mapping[str, str] = {"T4": "50Gb/s", "RTX 2080 Ti": "50Gb/s", "A100 SXM 40GB": "8x InfiniBand HDR"}
"""Network between the nodes of a type (section 4)."""
LOCAL_MOST: Mapping[tuple[str, str], int] = {("deepspeech2", "RTX 2080 Ti"): 57}


def settings(round_s: float = 60.0) -> ClusterSettings:
    """Settings of its simulator. ``round_s`` is 360 for Gavel."""
    return ClusterSettings(round_s=round_s, restart_by_model=RESTART_S, believed_restart=BELIEVED_RESTART_S, moves_free=True)


def predicted(fleet: Fleet, profiles: Mapping[str, ModelProfile]) -> EstimatePool:
    """Predictions of its models from datasheets, for each type by constants that were fitted without any step on it.

    Args:
        profiles: profiles whose batches bound those of their models.
    """
    by_device = {}
    for group in fleet.groups:
        constants = efficiency("ordinary", without=device(group.device).chip)
        nodes = Fleet((group.joined(NETWORKS[group.device]),))
        by_device[group.device] = Predictions(nodes, Predictor(constants=constants), profiled_networks())
    return EstimatePool(lambda model, device: by_device[device].believed(model, device, profiles))


class SiaRun(ProfiledRun):
    """A job of its simulator.

    Its policy assumes that a job stays within the batch of the trace (``tuned_batch``), though the job exceeds it.
    """

    def __init__(
        self,
        job: Job,
        profile: ModelProfile,
        fleet: Fleet,
        *,
        adapts_batch: bool,
        beliefs: SpeedEstimate | None = None,
        tuned_batch: bool = True,
        work_stated: bool = True,
    ) -> None:
        super().__init__(
            job,
            profile,
            fleet,
            adapts_batch=adapts_batch,
            beliefs=beliefs or OnlineEstimate(),
            work_stated=work_stated,
            slowdown=SLOWDOWN.get(job.model, 1.0),
        )
        self._tuned_batch = tuned_batch

    def _limits(self, device: str) -> BatchLimits:
        limits = super()._limits(device)
        most = LOCAL_MOST.get((self.job.model, device), self.profile.speed(device).local_range[1])
        return replace(limits, local_most=most)

    def _placed_limits(self) -> BatchLimits:
        limits = self._limits(self._device)
        return replace(limits, local_most=self.profile.speed(self._device).local_most(self._shape))

    def _believed_limits(self, device: str) -> BatchLimits:
        limits = self._limits(device)
        return replace(limits, most=self.job.batch) if self._tuned_batch and self.job.batch else limits


class SiaGavelRun(SiaRun):
    """A rigid job of its simulator under Gavel.

    Its outlook counts steps a second, whatever their batch, so the job of the smallest steps gains most. One device always
    makes two
    passes.
    """

    def __init__(self, job: Job, profile: ModelProfile, fleet: Fleet) -> None:
        super().__init__(job, profile, fleet, adapts_batch=False, beliefs=MeasuredEstimate(profile), tuned_batch=False)

    kind = None  # type: ignore[assignment]  # its own table is not of goodput

    def missing_goodput(self, device_type: int, most: int) -> MissingTable | None:
        return None

    def _table(self, device_type: int, most: int, group: NodeGroup, times: StepSeconds | None) -> Array:
        group, devices = self.fleet.groups[device_type], self.job.devices
        table = np.zeros(most + 1)
        if devices <= min(most, group.devices):
            shape, speed = packed(devices, group.devices_per_node), self.profile.speed(group.device)
            limits = replace(self._limits(group.device), local_most=speed.local_most(shape))
            local, passes = batch_split(limits, self.job.batch, devices)
            if devices == 1 and passes == 0:
                local, passes = -(-local // 2), 1
            step, exchange = speed.measured(shape, local)
            table[devices] = np.nan_to_num(1 / (step + passes * (step - exchange)) / self.slowdown)
        return table


GAVEL = RoundRules(forgets=False)
"""Rules of its simulator for Gavel: one queue over jobs and types, and received time is never forgotten."""

__all__ = ["CLUSTER", "GAVEL", "HOMOGENEOUS", "RESTART_S", "SLOWDOWN", "SiaGavelRun", "SiaRun", "predicted", "settings"]
