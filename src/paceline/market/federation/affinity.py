"""How fast a job is on other device types, predicted: one site's slow devices are another's bargain."""

from __future__ import annotations

from functools import cache
from typing import Any

from paceline.errors import UserError
from paceline.market.federation.demand import Speed
from paceline.prediction import Predictor
from paceline.scheduling.job import Job
from paceline.verbs import predict

MOST_DEVICES = 8
"""Of one node: both types are compared on a node of as many, where the network between nodes does not count."""


def predicted_speed(predictor: Predictor | None = None) -> Speed:
    """What a predictor says of networks that it knows: samples a second on a type, beside those at home, at the job's batch.

    A model that ``paceline predict`` does not take has speed 0: nobody knows it, and its jobs stay on types of their own.
    """

    @cache
    def samples_per_s(model: str, devices: int, batch: int, device: str) -> float:
        choices: dict[str, Any] = {"global_batch_size": batch} if batch else {}
        try:
            return predict(model, f"1x{devices} {device}", predictor=predictor, **choices).samples_per_s
        except UserError:  # a network that nobody knows, or one that does not fit the device
            return 0.0

    def speed(job: Job, home: str, device: str) -> float:
        if not job.model:
            return 0.0
        devices = min(job.devices, MOST_DEVICES)
        batch = job.batch * devices // job.devices if job.batch else 0
        here, there = (samples_per_s(job.model, devices, batch, each) for each in (home, device))
        return there / here if here else 0.0

    return speed


__all__ = ["predicted_speed"]
