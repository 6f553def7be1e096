"""Predicted relative speeds of jobs on other device types."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.errors import UserError
from paceline.market.federation.demand import Speed
from paceline.prediction import StepPredictor
from paceline.scheduling.job import Job
from paceline.verbs import predict

MOST_DEVICES = 8
"""Devices per node in the comparison of two types. One node leaves the network between nodes out."""


def predicted_speed(predictor: StepPredictor | None = None) -> Speed:
    """Return a function that predicts samples a second on a type, relative to the home type, at the job's batch.

    A model that ``paceline predict`` does not know has speed 0: its jobs stay on their site's types.
    """

    @cache
    def samples_per_s(model: str, devices: int, batch: int, device: str) -> float:
        choices: dict[str, Any] = {"global_batch_size": batch} if batch else {}
        try:
            return predict(model, f"1x{devices} {device}", predictor=predictor, **choices).samples_per_s
        except UserError:  # an unknown network, or one that does not fit the device
            return 0.0

    def speed(job: Job, home: str, device: str) -> float:
        if not job.model:
            return 0.0
        devices = min(job.devices, MOST_DEVICES)
        batch = job.batch * devices // job.devices if job.batch else 0
        here, there = (samples_per_s(job.model, devices, batch, each) for each in (home, device))
        return there / here if here else 0.0

    return speed
