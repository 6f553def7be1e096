"""Jobs of networks that the predictor knows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.prediction import Predictor
from paceline.prediction.layouts.batch import Candidate, Steps
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.speeds.predicted_jobs import Network, Predictions
from paceline.workload import Workload

FLEET = Fleet.named("2x4xT4 + 1x4xV100, 25Gb/s")
PREDICTIONS = Predictions(FLEET)


def job(**also: object) -> Job:
    return Job(**{"name": "a", "model": "resnet-50", "devices": 2, "batch": 64, "samples": 64e3, **also})  # type: ignore[arg-type]


def test_a_job_goes_as_fast_as_it_is_predicted_on_each_type() -> None:
    stated, profile = PREDICTIONS.profile(job())
    assert set(profile.speeds) == {"T4", "V100 SXM2 16GB"} and stated.batch == 64
    assert profile.epochs.count == 1 and profile.epochs.ends[0] == 1000
    local = np.array([32])
    t4, v100 = (profile.speeds[name].step_s(local * 0 + 1, local * 0 + 2, local)[0][0] for name in profile.speeds)
    assert v100 < t4


def test_steps_epochs_and_a_target_are_counted_in_samples() -> None:
    assert PREDICTIONS.profile(job(samples=0, steps=500))[1].epochs.ends[0] == 500
    one, two = (PREDICTIONS.profile(job(samples=0, epochs=n))[1].epochs.ends[0] for n in (1, 2))
    assert two == pytest.approx(2 * one) and one == pytest.approx(1_281_167 / 64, rel=0.01)
    assert PREDICTIONS.profile(job(samples=0, target="mlperf"))[1].epochs.ends[0] > 20 * one
    with pytest.raises(UserError, match="its work cannot be counted in samples"):
        PREDICTIONS.profile(job(model="vgg16", samples=0, epochs=1))


def test_a_larger_batch_takes_fewer_steps_and_more_samples() -> None:
    _, profile = PREDICTIONS.profile(job(adapts=frozenset({"devices", "batch"}), min_batch=256, max_batch=8192))
    small, large = profile.epochs.iterations[:, 0]
    assert small == 250 and small / 32 < large < small
    with pytest.raises(UserError, match="no critical batch of vgg16 is known"):
        PREDICTIONS.profile(job(model="vgg16", adapts=frozenset({"batch"})))


def test_nodes_without_a_network_are_refused_with_what_to_write() -> None:
    with pytest.raises(UserError, match=r"the network is unknown; write '2x4xT4, 100Gb/s'"):
        Predictions(Fleet.named("2x4xT4")).profile(job())


def test_a_name_that_nobody_knows_is_known_not_to_be_one() -> None:
    assert PREDICTIONS.knows("resnet50") and not PREDICTIONS.knows("nightly build") and not PREDICTIONS.knows("")
    own = Predictions(FLEET, networks={"nightly": Network(Workload.named("resnet-18"), (("optimizer", "adam"),))})
    assert own.knows("nightly") and own.network("nightly").workload.name == "resnet-18"


def test_a_scenario_of_networks_ends_with_what_was_believed() -> None:
    jobs = tuple(job(name=f"{index}", arrival_s=60.0 * index, adapts=frozenset({"devices"})) for index in range(4))
    outcomes = {}
    for knowledge in ("measured", "predicted", "online"):
        scenario = Scenario(jobs=jobs, fleet=FLEET, knowledge=knowledge, predictions=Predictions(FLEET))  # type: ignore[arg-type]
        outcomes[knowledge] = scenario.run("paceline").schedule.outcomes
    ends = {name: [round(outcome.end_s) for outcome in each] for name, each in outcomes.items()}
    assert ends["measured"] == ends["predicted"]  # the truth is the prediction
    assert max(ends["online"]) > max(ends["measured"])  # what must be tried first costs time


FEW = Fleet.named("250x8xRTX 2080 Ti, 25Gb/s")
LARGE = {"model": "gpt2-large", "batch": 16, "devices": 4, "samples": 1600, "adapts": frozenset({"devices", "strategy"})}
"""Fits no single device of 11 GB."""


def test_a_job_whose_strategy_changes_has_one_on_each_size_that_holds_it() -> None:
    few = Predictions(Fleet.named("1x4xRTX 2080 Ti"))
    planned = few.planned(job(**LARGE), True)
    assert planned.steps == 100 and planned.job.min_devices == 2
    rates = planned.run(planned.job, False).goodput(0, 4)
    assert rates[1] == 0 < rates[2] == rates[3] < rates[4]
    assert planned.run(planned.job, False).relative_spread() > 0 == planned.run(planned.job, True).relative_spread()
    kept = few.planned(job(**LARGE), False).strategies["RTX 2080 Ti"]
    assert kept.stated == planned.strategies["RTX 2080 Ti"].on(4).kept  # type: ignore[union-attr]


def test_what_no_device_holds_is_refused_with_what_to_do() -> None:
    few = Predictions(Fleet.named("1x4xRTX 2080 Ti"))
    with pytest.raises(UserError, match=r"with batch 16: it does not fit 1 RTX 2080 Ti; ask for 2 RTX 2080 Ti"):
        few.planned(job(**LARGE | {"devices": 1}), True)
    for strategy, why in (
        ("ddp", "as ddp: it does not fit 4 RTX 2080 Ti; give it another strategy, or larger devices"),
        ("tensor=3", "as tensor=3: 4 devices are no whole replicas of 3"),
        ("compression=powersgd+sharding=zero3", "powersgd works on whole matrices"),
    ):
        with pytest.raises(UserError, match=why):
            few.planned(job(**LARGE | {"strategy": strategy, "adapts": frozenset()}), True)
    with pytest.raises(UserError, match="asks for 8 devices; the cluster has 4 of one type"):
        few.planned(job(**LARGE | {"devices": 8}), True)
    with pytest.raises(UserError, match="no batch; give its batch"):
        few.planned(job(strategy="zero3", batch=0), True)
    with pytest.raises(UserError, match="adapts its batch; let it adapt one"):
        few.planned(job(strategy="zero3", adapts=frozenset({"batch"})), True)


def test_a_thousand_jobs_on_two_thousand_devices_cost_few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted = 0
    many = Predictor.many

    def counted(self: Predictor, workload: Workload, candidates: Sequence[Candidate]) -> Steps:
        nonlocal predicted
        predicted += len(candidates)
        return many(self, workload, candidates)

    monkeypatch.setattr(Predictor, "many", counted)
    predictions = Predictions(FEW)
    for index in range(1000):
        own = {"strategy": "zero3", "adapts": frozenset({"devices"})} if index % 2 else {"adapts": LARGE["adapts"]}
        planned = predictions.planned(job(name=f"{index}", batch=256, devices=8, **own), True)
        assert planned.run(planned.job, True).goodput(0, 2000)[2000] > 0
    assert 0 < predicted < 1000  # of both surfaces, on all sizes


def test_equal_jobs_share_a_surface() -> None:
    fleet = Fleet.named("4x4xT4, 25Gb/s")
    predictions = Predictions(fleet)
    first = predictions.surface("resnet-50", fleet.groups[0], 4, 16)
    assert predictions.surface("resnet-50", fleet.groups[0], 4, 16) is first
    assert predictions.surface("resnet-50", fleet.groups[0], 4, 8) is not first
