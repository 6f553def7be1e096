"""Bounds of pipelines: never above the simulated schedule, equal to it where stages are even and sends take no time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.prediction.layouts.pipeline_bounds import PipelineShape, in_flight, late_weights, pipelined_seconds
from paceline.prediction.mesh.pipeline import schedule_pipeline
from paceline.strategy.pass_order import SCHEDULES

shapes = st.tuples(st.integers(1, 6), st.integers(1, 3), st.sampled_from(["1f1b", "gpipe", "zero_bubble"])).map(
    lambda drawn: PipelineShape(drawn[0], drawn[1] if drawn[0] > 1 and drawn[2] == "1f1b" else 1, SCHEDULES[drawn[2]])
)


def bound(shape: PipelineShape, times: int, forward: list[float], backward: list[float], send: list[float]) -> float:
    nothing = np.zeros((1, 1, shape.stages))
    whole = np.array([forward]), np.array([backward]), np.array([send])
    return float(pipelined_seconds(shape, np.array([[times]]), whole, nothing, nothing, np.zeros((1, 1, 1)), 0.0)[0, 0, 0])


@pytest.mark.long
@settings(max_examples=15 * settings.default.max_examples)
@given(shapes, st.integers(1, 5), st.data())
def test_no_schedule_undercuts_its_bound(shape: PipelineShape, rounds: int, data: st.DataObject) -> None:
    parts = shape.stages * shape.virtual
    times = shape.stages * rounds if shape.virtual > 1 else data.draw(st.integers(1, 3 * shape.stages))
    seconds = st.floats(0.0, 10.0)
    forward, backward = (data.draw(st.lists(seconds, min_size=parts, max_size=parts)) for _ in range(2))
    send = data.draw(st.lists(st.floats(0.0, 3.0), min_size=parts - 1, max_size=parts - 1))
    late = shape.schedule.name == "zero_bubble"
    weights = [data.draw(st.floats(0.0, 1.0)) * seconds for seconds in backward] if late else []
    simulated = max(schedule_pipeline(forward, backward, times, shape.stages, send, shape.schedule, weights).ends)
    assert bound(shape, times, forward, backward, send) <= simulated


@given(shapes, st.integers(1, 5))
def test_the_bound_of_even_stages_is_the_schedule(shape: PipelineShape, rounds: int) -> None:
    parts, times = shape.stages * shape.virtual, shape.stages * rounds
    even = [1.0] * parts, [2.0] * parts, [0.0] * (parts - 1)
    if shape.schedule.name == "zero_bubble":
        return  # it hides a part of the bubble that the bound leaves out
    simulated = schedule_pipeline(*even[:2], times, shape.stages, even[2], shape.schedule)
    assert bound(shape, times, *even) == pytest.approx(max(simulated.ends))


def test_slow_sends_hold_up_a_pipeline_that_has_few_micro_batches_on_the_way() -> None:
    shape, forward, backward, send = PipelineShape(4, 1, SCHEDULES["1f1b"]), [1.0] * 4, [2.0] * 4, [0.5] * 3
    simulated = max(schedule_pipeline(forward, backward, 64, 4, send).ends)
    without = 64 * 3 + 3 * 3
    assert bound(shape, 64, forward, backward, send) > without + 0.6 * (simulated - without)


@given(shapes, st.integers(1, 4))
def test_micro_batches_in_flight_are_those_of_the_schedule(shape: PipelineShape, rounds: int) -> None:
    stages, virtual = shape.stages, shape.virtual
    for times in {stages * rounds, 1, 3} if virtual == 1 else {stages * rounds}:
        parts = stages * virtual
        weights = [1.0] * parts if shape.schedule.name == "zero_bubble" else []
        scheduled = schedule_pipeline([1.0] * parts, [2.0] * parts, times, stages, [0.0] * (parts - 1), shape.schedule, weights)
        assert in_flight(shape, np.array(times)).tolist() == list(scheduled.in_flight)
        assert late_weights(shape, np.array(times)).tolist() == list(scheduled.late)


def test_sends_of_virtual_stages_delay_both_ends_of_a_step() -> None:
    shape, forward, backward, send = PipelineShape(4, 3, SCHEDULES["1f1b"]), [1.0] * 12, [2.0] * 12, [0.5] * 11
    for times in (4, 8, 64):
        simulated = max(schedule_pipeline(forward, backward, times, 4, send).ends)
        assert bound(shape, times, forward, backward, send) == pytest.approx(simulated)
