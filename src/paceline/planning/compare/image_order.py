"""Gain of images in channels last, where the software takes another memory format by default."""

from __future__ import annotations

from paceline.hardware import Cluster
from paceline.prediction import Prediction, StepPredictor
from paceline.strategy import Strategy
from paceline.strategy.memory_format import CHANNELS_LAST
from paceline.units import format_seconds
from paceline.workload.table import Workload

WORTH = 1.02
"""Least speedup that is named."""


def faster_format(workload: Workload, cluster: Cluster, strategy: Strategy, predictor: StepPredictor, now: Prediction) -> str:
    """Describe the speedup of channels last; empty without one, without convolutions or where a memory format is named."""
    if strategy.memory_format or not any(o.kind == "conv" for layer in workload.layers for o in layer.operations):
        return ""
    then = predictor.step(workload, cluster, strategy.changed(memory_format=CHANNELS_LAST)).step_time_s
    if now.step_time_s < WORTH * then:
        return ""
    steps = f"{format_seconds(then)} a step instead of {format_seconds(now.step_time_s)}"
    return f"channels last: {now.step_time_s / then:.2f}x, {steps} (--layout {CHANNELS_LAST})"
