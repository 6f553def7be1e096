"""Waits that come to light where a resource is free: as long, corrected, as the work that hid them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.hardware import cluster as named_cluster
from paceline.prediction import Observation, fit, predict
from paceline.prediction.correction.gaussian_process import Position
from paceline.strategy import Strategy
from paceline.workload import Workload


@pytest.mark.everyday("0.1")
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_wait_in_place_of_the_work_that_hid_it_leaves_the_corrected_step_as_long(share: float) -> None:
    net, place = Workload.named("resnet-50"), named_cluster("V100", 2, 4, "10Gb/s")
    strategy = Strategy.of(world_size=8, global_batch_size=8 * 16, precision="fp16")
    plain = predict(net, place, strategy)
    sync_s = plain.exposed_comm_s
    seen = Observation(workload=net, cluster=place, strategy=strategy, step_s=2 * plain.step_time_s - sync_s, sync_s=sync_s)
    correction = fit([seen] * 5).correction
    whole = predict(net, correction.cluster(place), strategy)
    work = whole.step_time_s - whole.exposed_comm_s
    freed = replace(whole, exposed_comm_s=whole.exposed_comm_s + share * work, compute_s=(1 - share) * work)
    before, after = (correction.applied(step, Position.of(net, place, strategy), whole) for step in (whole, freed))
    assert before.compute_s / work > 1.5 * before.exposed_comm_s / whole.exposed_comm_s
    assert after.step_time_s == pytest.approx(before.step_time_s)
    assert after.exposed_comm_s == pytest.approx(before.exposed_comm_s + share * before.compute_s)
