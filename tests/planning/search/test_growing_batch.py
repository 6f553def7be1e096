"""Plan of a batch that grows: its stages are what ``train`` runs, its time is their sum."""

from __future__ import annotations

import json

import pytest

from paceline.cli import main as run
from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.planning.search.goal import parse_goal
from paceline.planning.search.growing_batch import growing_batch
from paceline.planning.search.plan import plan
from paceline.planning.search.space import Space
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import Predictor
from paceline.workload import Workload

ROWS = [(0, 70), (4000, 256), (8000, 1024)]


def test_stages_add_up_to_the_run() -> None:
    network, cluster = Workload.named("lenet5"), Cluster.named("4 V100")
    best = plan(network, Space(clusters=(cluster,), batches=(512,)), parse_goal("fastest"), TrainingTarget(total=20_000.0)).best
    growing = growing_batch(network, best, ROWS, Predictor())
    batches = [stage.strategy.global_batch_size for stage in growing.stages]
    assert batches == [64, 128, 256, 512] and growing.stages[0].samples == 0
    assert len({stage.strategy.micro_batch_size for stage in growing.stages}) == 1
    ends = [*(stage.samples for stage in growing.stages[1:]), 20_000]
    for stage, end in zip(growing.stages, ends, strict=True):
        assert (stage.steps - 1) * stage.strategy.global_batch_size < end - stage.samples
        alone = Predictor().step(network, cluster, stage.strategy)
        assert stage.step_time_s == pytest.approx(alone.step_time_s, rel=1e-6)
    assert growing.time_s == pytest.approx(sum(s.steps * s.step_time_s for s in growing.stages))
    assert growing.constant_steps == 313 and growing.saved == pytest.approx(1 - growing.steps / 313)
    assert growing.text.startswith("128@") and growing.to_json()["stages"][1]["batch"] == 128
    with pytest.raises(UserError, match="no critical batch"):
        growing_batch(network, best, [], Predictor())


def test_predict_answers_the_stages_of_train_and_refuses_what_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["lenet5", "--cluster", "4 V100", "--json"]

    def answer(*words: str) -> tuple[int, str]:
        code = run([*words])
        told = capsys.readouterr()
        return code, told.out + told.err

    code, text = answer("predict", *job, "--global-batch", "64", "--batch-growth", "128@1k,512@3k")
    stages = json.loads(text)["batch_stages"]
    assert code == 0 and [(s["batch"], s["samples"], s["steps"]) for s in stages] == [
        (64, 0, 16),
        (128, 1000, 16),
        (512, 3000, None),
    ]
    wider = json.loads(answer("predict", *job, "--global-batch", "512", "--grad-accum", "8")[1])
    assert stages[2]["step_time_s"] == pytest.approx(wider["step_time_s"], rel=1e-6)
    growing = ["predict", *job, "--global-batch", "64", "--batch-growth"]
    for words, reason in (
        ([*growing, "96@1k"], "whole factors"),
        ([*growing, "128"], "BATCH@SAMPLES"),
        ([*growing, "128@1k", "--sync-every", "8"], "local steps"),
        ([*growing, "128@1k", "--mtbf", "500h"], "goodput"),
        ([*growing, "128@1k", "--asynchronous"], "asynchronous"),
        (["plan", *job, "--samples", "1k", "--critical-batches", "rows.csv", "--emit", "script"], "does not grow"),
    ):
        code, text = answer(*words)
        assert code == 2 and reason in text, text
