"""Prediction of what slimming would give, here and on a published device."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from paceline.edge import slim_prediction
from paceline.edge.slim_prediction import predict
from paceline.edge.slim_run import SlimRun
from paceline.edge.weights_forecast import WeightsForecast
from paceline.errors import UserError
from paceline.hardware.edge import edge_device
from paceline.slimming.latency.edge_errors import edge_errors, errors_note
from paceline.slimming.latency.edge_times import edge_times, on_device
from paceline.slimming.methods.budget import Budget
from paceline.slimming.methods.methods import METHODS
from paceline.slimming.methods.weight_forms import INT4, INT8
from paceline.slimming.slim import Slim
from paceline.slimming.structures.shrink import module_bytes
from paceline.strategy import Strategy
from paceline.training.runs.data import load as load_data
from paceline.training.runs.starting_model import build_model
from paceline.training.runs.training_run import TrainingRun

PI = edge_device("pi 4")
FORECASTS: list[WeightsForecast] = []


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    """Of the layers, measured once."""
    return Slim(build_model("lenet5", 0).eval(), (load_data("digits").train_x[:1],), budget="size=500kB").table


@pytest.fixture(autouse=True)
def slims(table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[Slim]:
    """What predictions are made with; a student's layers are not timed at all."""
    made: list[Slim] = []

    def kept(*args: Any, **settings: Any) -> Slim:
        made.append(Slim(*args, **settings, table=table if settings["method"] != "compact" else None))
        return made[-1]

    monkeypatch.setattr(slim_prediction, "Slim", kept)
    monkeypatch.setattr(slim_prediction, "weights_forecasts", lambda slim, forms: FORECASTS)
    monkeypatch.setattr("paceline.slimming.latency.width_tables.seconds", lambda node, threads=1: 1e-11 * node.products)
    return made


def run_of(**changes: Any) -> SlimRun:
    training = TrainingRun(model="lenet5", data="digits", strategy=Strategy.of(world_size=1, global_batch_size=64))
    return SlimRun(**{"training": training, "budget": Budget("speedup", 2), **changes})


@pytest.mark.long
def test_widths_here(slims: list[Slim]) -> None:
    found = predict(run_of())
    (slim,) = slims
    assert found.latency_s == slim.whole.median_s and found.low_s is found.device is None
    assert [(each.varied, each.share) for each in found.rows] == [("width", share) for share in (0.75, 0.5, 0.25, 0.125)]
    prospects = {each.share: each for each in METHODS["auto"].prospects(slim).every}
    assert all(each.latency_s == prospects[each.share].seconds and each.low_s is None for each in found.rows)
    assert found.goal == slim.goal == found.latency_s / 2 and found.meets is not None
    larger = [each for share, each in prospects.items() if share > found.meets.share]
    assert found.meets.latency_s <= found.goal < min(each.seconds for each in larger)
    assert found.layers == slim.times.by_layer()


@pytest.mark.long
def test_ranks_here_and_there(slims: list[Slim], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of a device is its operations, carried over."""
    method, prospects = METHODS["force"], []
    made = type(method).prospects
    monkeypatch.setattr(type(method), "prospects", lambda self, slim: prospects.append(made(self, slim)) or prospects[-1])
    here, there = predict(run_of(method="force")), predict(run_of(method="force", threads=4), PI)
    assert here.varied == there.varied == "rank" and [each.share for each in there.rows] == [0.5, 0.25, 0.125]
    assert here.kept == dict(prospects[0].kept), (
        "which layers stay was measured; tests/slimming/latency/test_latency_forecast.py has the rules"
    )
    slim, found = slims[1], prospects[1]
    assert slim.threads == 1 and there.threads == 4, "what is timed here is one core, of theirs are four"
    whole = edge_times(slim.times, PI, threads=4)
    assert (there.latency_s, there.low_s, there.high_s) == (whole.seconds, whole.low_s, whole.high_s)
    for row, prospect in zip(there.rows, found.every, strict=True):
        theirs = on_device(prospect.nodes, prospect.rest_s, PI, 4)
        assert (row.latency_s, row.low_s, row.high_s) == (theirs.seconds, theirs.low_s, theirs.high_s)
    assert there.goal == there.latency_s / 2 and errors_note(PI.name, 4) in there.notes
    assert there.device is not None and "https://" in there.device.sources["one_core"] and there.device.cores == 4


@pytest.mark.long
def test_zeros_on_a_device_are_not_guessed() -> None:
    found = predict(run_of(method="sparse"), PI)
    assert found.rows == () and found.meets is None and not found.kept and found.latency_s > 0
    assert found.notes[0].startswith("The effect of sparsity on Raspberry Pi 4 is not predicted: it depends on the speed")


@pytest.mark.long
def test_the_whole_network_of_a_student_is_the_whole_one(slims: list[Slim]) -> None:
    found = predict(run_of(method="compact"), PI)
    assert {"conv1", "fc2"} <= found.layers.keys(), "not the student's layers"
    assert found.rows and found.varied == "width" and slims[0].subject is not slims[0].model


def test_a_size_and_a_loss_of_accuracy() -> None:
    size = predict(run_of(budget=Budget("size", 500e3)))
    assert size.goal == 500e3 and size.meets is not None and size.meets.weight_bytes <= 500e3
    loss = predict(run_of(budget=Budget("accuracy", 1.0)))
    assert loss.goal is None and loss.meets is None and len(loss.rows) == 4


def test_fewer_bits_need_less_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a third of the size: weights of three times the budget, in fp32, meet it."""
    whole = module_bytes(build_model("lenet5", 0))
    forecasts = [WeightsForecast(form, 0.8, 0.7, 0.9, 1e-3, round(whole / 3), whole / 3) for form in (INT8, INT4)]
    monkeypatch.setattr(slim_prediction, "weights_forecasts", lambda slim, forms: forecasts)
    found = predict(run_of(budget=Budget("size", 100e3), weights=(INT8, INT4)))
    eight, _ = found.forms
    assert eight.alone == "no" and eight.share is not None and found.meets is not None and eight.share > found.meets.share
    assert f"With int8, {100 * eight.share:.3g} % of all structures meet size=100kB, predicted." in eight.text == found.int8
    larger = predict(run_of(budget=Budget("size", 600e3)))
    assert larger.forms[0].alone == "yes" and larger.forms[0].share is None


def test_a_budget_that_a_device_meets_already_is_refused() -> None:
    with pytest.raises(UserError, match=r"it meets latency=10\.0s already"):
        predict(run_of(budget=Budget("latency", 10.0)), PI)


def test_the_errors_are_those_of_the_rows_of_results() -> None:
    file = Path(__file__).parents[2] / "benchmarks" / "results" / "edge_latency.csv"
    rows = list(csv.DictReader(file.open(newline="")))
    found = [(row["device"], row["network"], float(row["published_ms"]) / float(row["predicted_ms"])) for row in rows]
    assert [(each.device, each.network) for each in edge_errors()] == [each[:2] for each in found] and len(found) == 212
    assert [each.ratio for each in edge_errors()] == pytest.approx([each[2] for each in found], abs=1e-3)
    off = 100 * median(abs(float(row["error"])) for row in rows)
    assert f"were {off:.0f} % off 212 published latencies of 15 processors" in errors_note(PI.name, 4)
    assert "Raspberry Pi 4 has 18 rows on several cores" in errors_note(PI.name, 4)


def test_the_stages_of_a_record() -> None:
    run = run_of()
    made = run.trained(3)
    assert made.epochs == {"whole network": 10, "path": 15, "slimmed network": 5} and made.batch == 64 and made.workers == 1
    assert made.optimizer == run.training.strategy.optimizer and made.lr == run.training.learning_rate and made.distill == 0.5
    assert run.trained(1, taught=False).distill == 0
    begun = run_of(training=replace(run.training, start="weights.pt"), tune_epochs=4)
    assert begun.trained(1).epochs == {"path": 5, "slimmed network": 4}
    assert run_of(method="compact").trained(1).epochs == {"whole network": 10, "slimmed network": 10}
