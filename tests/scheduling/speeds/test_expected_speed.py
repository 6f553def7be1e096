"""What is believed of steps: the truth, what a job saw, or predictions that all jobs correct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.scheduling.speeds.expected_speed import EstimatePool, MeasuredEstimate, OnlineEstimate
from paceline.scheduling.speeds.predicted_speed import PredictedSpeed
from scheduling_toys import predicted, profile

ONE = np.array([1])


def surface(model: str = "a", device: str = "T4") -> PredictedSpeed:
    return predicted(16)


def step(times: object, devices: int, local: int) -> float:
    nodes = -(-devices // 4)
    return float(times.step_s(ONE * nodes, ONE * devices, ONE * local)[0][0])  # type: ignore[attr-defined]


def test_a_pool_predicts_before_any_job_ran_and_then_follows_the_jobs() -> None:
    pool = EstimatePool(surface)
    beliefs = pool.of("a")
    assert beliefs.scales and beliefs.total() is None
    times = beliefs.times("T4")
    assert step(times, 8, 32) == pytest.approx(0.39)
    beliefs.see("T4", (1, 1, 32), (0.64, 0.0))  # twice as slow as predicted
    after = pool.of("a").times("T4")
    assert step(after, 1, 32) == pytest.approx(0.64) and step(after, 8, 32) == pytest.approx(0.71)
    assert step(times, 1, 32) == pytest.approx(0.32), "what was believed before stays as it was"


def test_the_range_narrows_to_what_was_never_seen() -> None:
    """Steps of 64 samples take 0.64 s; an exchange 0.02 s within a node and 0.07 s between nodes."""
    pool = EstimatePool(surface)
    assert pool.of("a").spread("T4") == 0.4
    for key, seconds, left in (
        ((1, 1, 64), (0.64, 0.0), 0.4 * 0.07 / 0.71),
        ((1, 2, 64), (0.66, 0.02), 0.4 * 0.07 / 0.71),
        ((2, 8, 64), (0.71, 0.07), 0.0),
    ):
        pool.see("a", "T4", key, seconds)
        assert pool.of("a").spread("T4") == pytest.approx(left)
    assert pool.spread("a", "V100") == pool.spread("b", "T4") == 0.4
    pool.see("b", "T4", (2, 8, 64), (0.71, 0.07))
    assert pool.spread("b", "T4") == pytest.approx(0.4 * 0.02 / 0.66), "it exchanged between nodes, and never within one"


def test_the_range_follows_what_others_say_of_the_network() -> None:
    pool = EstimatePool(surface)
    pool.see("a", "T4", (1, 1, 64), (0.64, 0.0))
    before = pool.spread("a", "T4")
    pool.see("b", "T4", (2, 8, 64), (0.64 + 0.7, 0.7))
    assert pool.spread("a", "T4") == pytest.approx(0.4 * 0.7 / 1.34) and pool.spread("a", "T4") > before


@pytest.mark.parametrize(("most", "after"), [(1, 0.0), (4, 0.4 * 0.02 / 0.66)])
def test_where_there_is_one_node_nothing_is_unknown_of_others(most: int, after: float) -> None:
    small = replace(predicted(4), sizes=np.arange(1.0, most + 1), steps=predicted(4).steps[[0, 1, 2, 2][:most]])
    pool = EstimatePool(lambda model, device: small)
    pool.see("a", "T4", (1, 1, 64), (0.64, 0.0))
    assert pool.spread("a", "T4") == pytest.approx(after)
    pool.see("a", "T4", (1, 2, 64), (0.645, 0.005))  # too short to correct anything, and seen all the same
    assert pool.spread("a", "T4") == 0


def test_steps_stay_the_same_object_until_a_report_changes_them() -> None:
    pool = EstimatePool(surface)
    keys = [(model, device) for model in "ab" for device in ("T4", "V100")]

    def changed(*report: object) -> set[tuple[str, str]]:
        before = {key: pool.times(*key) for key in keys}
        pool.see(*report)  # type: ignore[arg-type]
        return {key for key in keys if pool.times(*key) is not before[key]}

    assert changed("a", "T4", (1, 1, 32), (0.64, 0.0)) == {("a", "T4")}, "how fast it computes says nothing of others"
    assert changed("a", "T4", (1, 1, 32), (0.64, 0.0)) == set()
    assert changed("a", "V100", (2, 8, 8), (0.08 + 0.28, 0.28)) == {("a", "V100"), ("b", "V100")}
    assert changed("b", "V100", (2, 8, 8), (0.08 + 0.07, 0.07)) == {("b", "V100")}


def test_a_network_that_one_model_saw_is_believed_of_the_others() -> None:
    pool = EstimatePool(surface)
    pool.of("a").see("T4", (2, 8, 8), (0.08 + 0.28, 0.28))  # the exchange takes four times as long
    assert step(pool.of("b").times("T4"), 16, 8) == pytest.approx(0.08 + 4 * 0.07)
    pool.of("b").see("T4", (2, 8, 8), (0.08 + 0.07, 0.07))  # its own step counts more
    assert step(pool.of("b").times("T4"), 16, 8) == pytest.approx(0.15)


def test_jobs_that_ended_say_how_long_such_jobs_take() -> None:
    pool = EstimatePool(surface)
    pool.of("a").end(100.0)
    pool.of("a").end(200.0)
    assert pool.of("a").total() == 150.0 and pool.of("b").total() is None


def test_a_job_that_learns_alone_does_not_believe_sizes_that_it_never_tried() -> None:
    online = OnlineEstimate()
    assert online.times("T4") is None and not online.scales
    online.see("T4", (1, 1, 8), (0.1, 0.0))
    times = online.times("T4")
    online.see("T4", (1, 1, 8), (0.1, 0.0))
    assert times is not None and online.times("T4") is times


def test_what_was_measured_is_the_profile_itself(tmp_path: Path) -> None:
    toy = profile(tmp_path)
    measured = MeasuredEstimate(toy)
    assert measured.times("T4") is toy.speeds["T4"] and measured.times("V100") is None
