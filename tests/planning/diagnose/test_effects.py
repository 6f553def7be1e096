"""Predicted steps with a cause are those of the same predictor on the changed question."""

from __future__ import annotations

import pytest

from paceline.planning.compare.changes import parse_change
from paceline.planning.diagnose.causes import causes
from paceline.planning.diagnose.effects import MeasuredCase, variants
from paceline.planning.diagnose.measured import parse_speed
from planning.diagnose.test_question import TWO, question


def case(text: str = "1 s") -> MeasuredCase:
    return MeasuredCase(TWO, parse_speed(text), 1.0)


def test_a_change_is_that_of_whatif() -> None:
    (only,) = variants(causes()["eager-attention"], [case()])
    changed = TWO.changed([parse_change("attention=eager")]).step
    assert only.guesses[0].seconds == pytest.approx(changed.step_time_s)
    assert only.weight == pytest.approx(1.0)


def test_a_reduction_in_each_micro_step_repeats_the_step_of_one() -> None:
    (only,) = variants(causes()["sync-micro-steps"], [case()])
    one = TWO.changed([parse_change("global-batch=32"), parse_change("accumulation=1")]).step
    assert only.guesses[0].seconds == pytest.approx(4 * one.step_time_s)


def test_an_unknown_factor_has_most_of_its_weight_in_its_range() -> None:
    cause = causes()["evaluation"]
    found = variants(cause, [case()])
    low, high = cause.slows
    inside = sum(v.weight for v in found if low <= v.guesses[0].seconds / TWO.step.step_time_s <= high)
    assert inside == pytest.approx(0.8, abs=0.06)
    assert all(v.free for v in found)


def test_a_loader_delivers_samples_at_one_rate() -> None:
    small = TWO.changed([parse_change("global-batch=64")])
    found = variants(causes()["loader"], [case(), MeasuredCase(small, parse_speed("1 s"), 1.0)])
    slowest = max(found, key=lambda v: v.guesses[0].seconds)
    assert slowest.guesses[0].seconds / slowest.guesses[1].seconds == pytest.approx(2.0)


def test_other_readings_of_a_number() -> None:
    (only,) = variants(causes()["unit-per-device"], [case("9 samples/s")])
    assert only.guesses[0].seconds == pytest.approx(16 * TWO.step.step_time_s)
    assert variants(causes()["unit-per-device"], [case("9 samples/s per GPU")]) == ()
    (sparse,) = variants(causes()["unit-mfu"], [case("20 % MFU")])
    assert sparse.guesses[0].seconds == pytest.approx(2 * TWO.step.step_time_s)


def test_a_change_that_does_not_fit_weighs_little() -> None:
    tight = question("llama-3-8b", "8 A100 40GB", global_batch_size=64, sharding="zero3")
    full = max(tight.cluster.device.memory.value, tight.step.memory_bytes)
    assert tight.changed([parse_change("precision=fp32")]).step.memory_bytes > 1.05 * full
    (only,) = variants(causes()["fp32"], [MeasuredCase(tight, parse_speed("1 s"), 1.0)])
    assert only.weight == pytest.approx(0.1)
