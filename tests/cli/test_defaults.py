"""What is left out means the same from Python as on the command line."""

from __future__ import annotations

import pytest

import paceline
from command import answer, run
from paceline.exit_codes import ExitCode
from paceline.hardware import cluster
from paceline.planning import Goal, Space, plan, predict_asynchronous
from paceline.prediction import predict
from paceline.strategy import Strategy
from paceline.workload import Workload

USUAL = {"bert-large": "bf16", "resnet-50": "tf32"}
ON_TWO = "--device A100 --nodes 2 --network 10Gb/s --global-batch 8"


@pytest.mark.parametrize("name", ["bert-large", "resnet-50"])
def test_predict(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=8, precision=USUAL[name])
    prediction = predict(Workload.named(name), cluster("A100", 1, 2, "10Gb/s"), strategy)
    asked = answer(capsys, f"predict {name} {ON_TWO}")
    assert (prediction.strategy, prediction.step_time_s) == (asked["strategy"], asked["step_time_s"])


@pytest.mark.parametrize("name", ["bert-large", "resnet-50"])
def test_predict_asynchronous(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy.of(world_size=2, global_batch_size=8, precision=USUAL[name])
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


@pytest.mark.parametrize("cluster", ["A100", "8 A100", "2x8 A100"])
def test_a_cluster_is_named_as_in_python(cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    prediction = paceline.predict("resnet-50", cluster, network="100Gb/s", precision="bf16")
    asked = answer(capsys, f"predict resnet-50 --cluster '{cluster}' --network 100Gb/s --precision bf16")
    assert (prediction.strategy, prediction.cluster, prediction.step_time_s) == (
        asked["strategy"],
        asked["cluster"],
        asked["step_time_s"],
    )


@pytest.mark.everyday("predict-llama-3-8b", "explain-resnet-50", "whatif-resnet-50", "predict --asynchronous-resnet-50")
@pytest.mark.parametrize("name", ["resnet-50", "llama-3-8b"])  # of the latter, nothing fits
@pytest.mark.parametrize("verb", ["predict", "explain", "whatif", "predict --asynchronous"])
def test_without_a_batch_the_answer_says_which_was_taken(name: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    batch = paceline.predict(name, "2x1 A100", network="10Gb/s").strategy["global_batch_size"]
    words = f"{verb} {name} --cluster '2x1 A100' --network 10Gb/s" + " --change nodes+2" * (verb == "whatif")
    code, out, err = run(capsys, words)
    assert (code, err) == (ExitCode.NO if batch == 2 and "async" not in verb else 0, "")
    text = " ".join(out.split())
    assert f"No --global-batch was given: {batch:,} samples were taken, {batch // 2:,} for each device, " in text
    assert ("which does not fit its memory" in text) == (batch == 2)
    assert "No --global-batch" not in run(capsys, f"{words} --global-batch 8")[1]


def test_the_sentence_on_a_batch_of_one_agrees_with_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run(capsys, "predict llama-3-8b --cluster '1 A100' --lora r=128,bits=4 --recompute none")[1].split())
    assert text.startswith("MAY NOT FIT") and "the smallest batch, which may not fit its memory." in text
