"""What is left out means the same from Python as on the command line."""

from __future__ import annotations

import pytest

from command import answer
from paceline.hardware import cluster
from paceline.planning import Goal, Space, plan, predict_asynchronous
from paceline.prediction import predict
from paceline.strategy import Strategy
from paceline.workload import Workload

ON_TWO = "--device A100 --nodes 2 --network 10Gb/s --global-batch 8"


@pytest.mark.parametrize("name", ["bert-large", "resnet-50"])
def test_predict(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=8)
    prediction = predict(Workload.named(name), cluster("A100", 1, 2, "10Gb/s"), strategy)
    asked = answer(capsys, f"predict {name} {ON_TWO}")
    assert (prediction.strategy, prediction.step_time_s) == (asked["strategy"], asked["step_time_s"])


@pytest.mark.parametrize("name", ["bert-large", "resnet-50"])
def test_predict_asynchronous(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=8)
    prediction = predict_asynchronous(Workload.named(name), cluster("A100", 1, 2, "10Gb/s"), strategy, drawn_steps=2)
    asked = answer(capsys, f"predict {name} {ON_TWO} --asynchronous")
    assert (prediction.to_json()["strategy"], prediction.result.samples_per_s) == (asked["strategy"], asked["samples_per_s"])


@pytest.mark.parametrize("name", ["bert-large", "resnet-50"])
def test_plan(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The samples of a plan without any are one million."""
    clusters = (cluster("A100", 1, 1),)
    best = plan(Workload.named(name), Space(clusters=clusters, batches=(8,), shardings=("ddp",)), Goal("fastest")).best
    asked = answer(capsys, f"plan {name} --device A100 --max-nodes 1 --global-batch 8 --sharding ddp")["best"]
    assert best.strategy.optimizer == asked["strategy"]["optimizer"]
    assert (best.strategy.to_json(), best.time_s) == (asked["strategy"], asked["time_s"])
