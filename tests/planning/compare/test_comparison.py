"""A strategy beside the best: both are of one predictor, so what records teach does not tilt the comparison."""

from __future__ import annotations

import re

import pytest

from paceline.hardware import cluster
from paceline.planning.search.goal import Goal
from paceline.planning.search.plan import plan
from paceline.planning.search.space import Space
from paceline.prediction import Observation, Predictor, fit
from paceline.strategy import Strategy
from paceline.workload import Workload


@pytest.mark.long
@pytest.mark.everyday("tuned")
@pytest.mark.parametrize("software", ["ordinary", "tuned"])
def test_what_is_left_out_is_compared_by_the_predictor_of_the_best(software: str) -> None:
    """Steps were observed that wait ten times as long as predicted: compression gains more than the catalogue says."""
    net, place, plain = Workload.named("vgg-16"), cluster("V100", 4, 2, "10Gb/s"), Predictor(framework=software)
    seen = []
    for batch in (256, 512, 1024):
        strategy = Strategy.of(world_size=8, global_batch_size=batch, precision="fp16")
        p = plain.step(net, place, strategy)
        waited = 10 * p.exposed_comm_s
        step = p.step_time_s - p.exposed_comm_s + waited
        seen.append(Observation(workload=net, cluster=place, strategy=strategy, step_s=step, sync_s=waited))
    corrected = fit(seen, plain)
    space = Space(clusters=(place,), batches=(512,), precisions=("fp16",))
    found = plan(net, space, Goal("fastest"), predictor=corrected, why_not={"compression": "sign"})
    rate = re.search(r"it would train ([0-9.e+-]+) times as many samples a second as the best", found.why_not)
    assert rate, found.why_not
    asked = found.best.strategy.changed(compression="sign", sharding="ddp")
    assert float(rate[1]) == pytest.approx(
        corrected.step(net, place, asked).samples_per_s / found.best.prediction.samples_per_s, rel=0.006
    )
    assert float(rate[1]) != pytest.approx(
        Predictor().step(net, place, asked).samples_per_s / found.best.prediction.samples_per_s, rel=0.05
    )
