"""A predictor with a correction around it: whose constants, whose loader, and what remains without it."""

from __future__ import annotations

import pickle

import pytest

from paceline.errors import UserError
from paceline.hardware.cluster import cluster
from paceline.prediction import CorrectedPredictor, Observation, Predictor, fit
from paceline.strategy import Strategy
from paceline.workload import Workload

NET, PLACE = Workload.named("resnet-50"), cluster("V100", 8, 1)
STRATEGY = Strategy.of(world_size=8, global_batch_size=512, precision="fp16")
TUNED = Predictor(framework="tuned")


def seen(times: float, predictor: Predictor = TUNED) -> list[Observation]:
    """Five steps that took so many times as long as predicted."""
    step_s = times * predictor.step(NET, PLACE, STRATEGY).step_time_s
    return [Observation(workload=NET, cluster=PLACE, strategy=STRATEGY, step_s=step_s)] * 5


def test_an_observation_is_of_the_predictor_that_it_corrects() -> None:
    starved = TUNED.changed(loader=1.0).without("compute")
    learnt = CorrectedPredictor(base=TUNED, correction=fit(seen(2), starved).correction)
    assert learnt.step(NET, PLACE, STRATEGY).step_time_s == pytest.approx(seen(2)[0].step_s, rel=0.05)


def test_a_correction_of_other_constants_is_refused() -> None:
    with pytest.raises(UserError, match="fitted with other constants; fit it again"):
        CorrectedPredictor(base=TUNED, correction=fit([]).correction)
    with pytest.raises(UserError, match=r"use paceline.prediction.fit"):
        CorrectedPredictor(base=TUNED, correction=None)  # type: ignore[arg-type]


def test_the_plain_predictor_remains_and_choices_carry_over() -> None:
    fed = TUNED.changed(loader=1e5)
    learnt = fit(seen(2), fed)
    assert learnt.uncorrected == fed and type(learnt.uncorrected) is Predictor and fed.uncorrected is fed
    assert isinstance(learnt, Predictor), "callers ask so"
    slower = learnt.changed(loader=1.0).step(NET, PLACE, STRATEGY)
    assert slower.step_time_s == pytest.approx(512.0) and slower.bottleneck == "input pipeline"
    again = fit(seen(1), learnt)
    assert again.step(NET, PLACE, STRATEGY).step_time_s < learnt.step(NET, PLACE, STRATEGY).step_time_s


def test_many_are_as_one_by_one() -> None:
    learnt = fit(seen(3)).changed(loader=1e4)
    (step_s,) = learnt.many(NET, [(PLACE, STRATEGY)]).step_s
    assert step_s == pytest.approx(learnt.step(NET, PLACE, STRATEGY).step_time_s)


def test_it_is_a_value() -> None:
    learnt = fit(seen(2), TUNED)
    assert learnt == learnt.changed() and learnt.without("network") != learnt
    assert pickle.loads(pickle.dumps(learnt.uncorrected)) == TUNED
