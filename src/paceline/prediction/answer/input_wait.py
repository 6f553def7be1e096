"""A prediction whose step also waits for its samples."""

from __future__ import annotations

from dataclasses import replace

from paceline.prediction.answer.lazy_tuple import lazy
from paceline.prediction.answer.result import Prediction
from paceline.prediction.answer.waits import in_turn
from paceline.prediction.timeline import input_event


def fed(prediction: Prediction, feed: float) -> Prediction:
    """Add a loader of ``feed`` seconds a step to a corrected step, since observed steps do not include it."""
    wait = max(0.0, feed - prediction.step_time_s)
    waited = [("wait for input", wait)]
    step_s = prediction.step_time_s + wait
    return replace(
        prediction,
        step_time_s=step_s,
        low_s=max(prediction.low_s, feed),
        high_s=max(prediction.high_s, feed),
        samples_per_s=prediction.samples_per_s * prediction.step_time_s / step_s,
        compute_s=prediction.compute_s + wait,
        exposed={**prediction.exposed, "input pipeline": wait},
        bottleneck="input pipeline" if wait > max(prediction.exposed.values()) else prediction.bottleneck,
        timeline=lazy(lambda: (*in_turn(prediction.step_time_s, waited), *prediction.timeline, input_event(feed))),
    )
