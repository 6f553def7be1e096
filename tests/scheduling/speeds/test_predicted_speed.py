"""Surfaces of predicted steps: the predictor's at their points, between them elsewhere, corrected by ratios."""

from __future__ import annotations

from dataclasses import replace

import pytest

import paceline
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.leaf_switches import on_leaves
from paceline.prediction import Predictor
from paceline.scheduling.fleet import NodeGroup
from paceline.scheduling.speeds.predicted_speed import SurfaceSpec, predicted_speed
from paceline.workload import Workload
from scheduling_toys import predicted

GROUP = NodeGroup.of("T4", 4, 4, "25Gb/s")
RESNET = Workload.named("resnet-50")
ASKED = SurfaceSpec(RESNET, GROUP, 4, 64, 16, (("precision", "fp32"),))


def test_its_points_are_the_predictors_steps() -> None:
    speed = predicted_speed(ASKED, Predictor())
    for shape, cluster in (((1,), "1 T4"), ((3,), "3 T4"), ((4, 4), "2x4 T4, 25Gb/s"), ((4, 4, 4, 4), "4x4 T4, 25Gb/s")):
        whole = paceline.predict(RESNET, cluster, precision="fp32", global_batch_size=64 * sum(shape))
        step, exchange = speed.measured(shape, 64)
        assert step == pytest.approx(whole.step_time_s) and 0 <= exchange < step
    wide, packed = speed.measured((1, 1), 64)[0], speed.measured((2,), 64)[0]
    assert wide > packed and speed.relative_spread > 0.05


def test_a_placement_over_racks_is_slower_by_their_oversubscription() -> None:
    racked = NodeGroup.of("T4", 4, 4, "25Gb/s", leaf_nodes=2, oversubscription=4.0)
    speed = predicted_speed(replace(ASKED, group=racked), Predictor())
    flat = predicted_speed(ASKED, Predictor())
    assert speed.measured((4, 4), 64) == flat.measured((4, 4), 64)  # one rack
    blocked = on_leaves(Cluster.named("2x4 T4, 25Gb/s"), 1, 4.0)
    whole = paceline.predict(RESNET, blocked, precision="fp32", global_batch_size=64 * 8)
    assert speed.measured((4, 4), 64, 2)[0] == pytest.approx(whole.step_time_s)
    assert speed.measured((4, 4), 64, 2)[0] > flat.measured((4, 4), 64, 2)[0]
    assert speed.measured((4,) * 4, 64)[0] > flat.measured((4,) * 4, 64)[0]  # four nodes need two racks


def test_between_its_points_it_lies_between() -> None:
    speed = predicted(16)
    low, high = (speed.measured((4, 4) if n == 8 else (4,) * 4, 8)[0] for n in (8, 16))
    assert low <= speed.measured((4, 4, 4), 8)[0] <= high
    assert speed.measured((4,), 36)[0] == pytest.approx((speed.measured((4,), 8)[0] + speed.measured((4,), 64)[0]) / 2)


def test_a_batch_that_does_not_fit_is_left_out_and_a_network_that_does_not_is_refused() -> None:
    speed = predicted_speed(SurfaceSpec(RESNET, GROUP, 1, 4096, 1), Predictor())
    assert speed.local_range[1] < 4096
    with pytest.raises(UserError, match="does not fit a T4"):
        predicted_speed(SurfaceSpec(Workload.named("llama-3-8b"), GROUP, 1, 8, 1), Predictor())
