"""The cluster and the jobs of Pollux's simulator (OSDI 2021, section 5.3), and the networks that its models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from paceline.calibration.constants import efficiency
from paceline.hardware.catalogue import device
from paceline.prediction import Predictor
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import policy_named
from paceline.scheduling.simulate.optimus_oracle import OptimusOracle
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.run import Run
from paceline.scheduling.simulate.scenario import Knowledge
from paceline.scheduling.speeds.expected_speed import Beliefs, Distorted, Measured, Online, Pool
from paceline.scheduling.speeds.predicted_jobs import Network, Predictions
from paceline.scheduling.speeds.profiles import Profile
from paceline.workload import Workload

CLUSTER = "16x4xT4, 50Gb/s"
LARGEST_BATCH: Mapping[str, int] = {"ncf": 32768}
"""Pollux's simulator lets ncf train at its largest batch on one device."""


def networks() -> dict[str, Network]:
    """Networks and precisions behind the names of the profiles (Pollux, table 1; imagenet trains in fp16)."""
    bert = Workload.named("bert-base-squad", 384)
    return {
        "cifar10": Network(Workload.named("resnet-18-cifar"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "imagenet": Network(Workload.named("resnet-50"), (("optimizer", "momentum"), ("precision", "fp16"))),
        "bert": Network(bert, (("optimizer", "adam"), ("precision", "fp32"))),
        "yolov3": Network(Workload.named("yolov3"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "deepspeech2": Network(Workload.named("deepspeech2"), (("optimizer", "momentum"), ("precision", "fp32"))),
        "ncf": Network(Workload.named("ncf"), (("optimizer", "adam"), ("precision", "fp32"))),
    }


def predictions(fleet: Fleet) -> Predictions:
    """By constants that were fitted without any step on such devices."""
    chip = device(fleet.groups[0].device).chip
    return Predictions(fleet, Predictor(constants=efficiency("ordinary", without=chip)), networks())


def jobs_for(policy: str, jobs: tuple[Job, ...]) -> list[Job]:
    """What its simulator gives each policy: Tiresias tuned devices and batches, Optimus tuned batches, Pollux neither."""
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
    profiles: Mapping[str, Profile],
    knowledge: Knowledge = "online",
    pool: Pool | None = None,
    *,
    work_stated: bool = True,
    error: float = 0.0,
    work_error: float = 0.0,
    seed: int = 0,
) -> Callable[[Job], Run]:
    """The truth of its simulator, and what a policy believes.

    Args:
        pool: of ``predictions``, where the knowledge is ``predicted``.
        error: standard deviation of the logarithm of believed steps; ``work_error``: of the work that is left.
    """
    draw = np.random.default_rng(seed)
    kind = OptimusOracle if policy == "optimus" else ProfiledRun

    def run(job: Job) -> Run:
        profile = profiles[job.model]
        beliefs: Beliefs = Online()
        if knowledge == "measured" or kind is OptimusOracle:
            beliefs = Measured(profile)
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


__all__ = ["CLUSTER", "jobs_for", "networks", "predictions", "runs_for"]
