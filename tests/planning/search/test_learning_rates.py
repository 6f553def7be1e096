"""To an accuracy a plan has learning rates: of a source that it names, timed with their optimizer, or said to be unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import samples
from command import answer, run
from paceline.hardware import cluster
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.learning_rates import TUNED, Recipes, of_records
from paceline.planning.search.space import worlds
from paceline.prediction.learning.convergence import mlperf
from paceline.record import RunRecord
from paceline.reporting.pages.answer_page import plan_page
from paceline.reporting.text.planning_text import plan_screen
from paceline.strategy.recipe import Recipe, scaled
from paceline.workload import Workload

MLPERF = TrainingTarget(curve=mlperf("resnet-50"), recipes=Recipes("resnet-50", target="mlperf"))
FEW: dict[str, Any] = {
    "compressions": ("dense",),
    "shardings": ("ddp",),
    "exchanges": ("allreduce",),
    "precisions": ("bf16",),
    "recomputes": (False,),
}


@pytest.fixture(scope="module")
def space() -> Space:
    clusters = tuple(cluster("A100", local, nodes, "400Gb/s") for local, nodes in worlds(8, 512) if nodes in (1, 8, 64, 512))
    return Space(clusters=clusters, optimizer="lars", **FEW)


def test_each_number_of_devices_has_its_batch_time_and_rates(space: Space) -> None:
    found = plan(Workload.named("resnet-50"), space, Goal("fastest"), MLPERF)
    assert [one.cluster.world_size for one in found.by_devices] == [1, 2, 4, 8, 64, 512, 4096]
    batches = [one.strategy.global_batch_size for one in found.by_devices]
    assert batches == sorted(batches) and batches[-1] > 32_768
    for one in found.by_devices:
        recipe = one.recipe
        assert recipe and recipe.optimizer == one.strategy.optimizer == "lars" and "MLPerf" in recipe.source
        assert recipe.total_steps == pytest.approx(one.samples / one.strategy.global_batch_size, abs=1)
        share = one.strategy.global_batch_size / (one.strategy.global_batch_size + 47_390)
        assert one.beyond_least == pytest.approx(share) and one.time_low_s < one.time_s < one.time_high_s
    assert found.best in found.by_devices or found.best.strategy in [one.strategy for one in found.by_devices]
    data = found.to_json()
    assert data["critical_batch"] == 47_390 and data["by_devices"][-1]["recipe"]["warmup_steps"] > 0
    text = plan_screen(found).text(why=True)
    assert max(map(len, text.splitlines())) <= 80 and "65,536*" in text and "lars, peak 24.7, warm-up" in text
    assert str(found.best.recipe)[:20] in text and TUNED in found.assumptions
    page = plan_page(found)
    assert len(next(s for s in page.sections if s.title == "By number of devices").rows) == 7


def test_no_rate_is_guessed(space: Space) -> None:
    """Neither for an optimizer that no published run had, nor for a network without any, nor for a short run."""
    few = replace(space, clusters=space.clusters[:1], batches=(1024,))
    adam = plan(Workload.named("resnet-50"), replace(few, optimizer="adamw"), Goal("fastest"), MLPERF)
    vgg = plan(Workload.named("vgg-16"), few, Goal("fastest"), TrainingTarget(recipes=Recipes("vgg-16")))
    short = plan(Workload.named("resnet-50"), few, Goal("fastest"), TrainingTarget(recipes=Recipes("resnet-50")))
    for one in (adam, vgg, short):
        assert one.best.recipe is None and one.learning_rates.startswith("unknown: no source has a learning rate")
        assert "--records" in plan_screen(one).text() and one.to_json()["best"]["recipe"] is None
    assert not plan(Workload.named("vgg-16"), few, Goal("fastest")).learning_rates  # nobody asked how to train
    assert "published for this network, with another optimizer: lars, momentum" in adam.learning_rates
    sgd = plan(Workload.named("resnet-50"), replace(few, optimizer="momentum"), Goal("fastest"), MLPERF)
    assert "Samples and critical batch come from runs with lars; with momentum they may differ." in sgd.assumptions
    lars = plan(Workload.named("resnet-50"), few, Goal("fastest"), MLPERF)
    assert not [said for said in lars.assumptions if "they may differ" in said]
    assert sgd.best.recipe and sgd.best.recipe.lr == pytest.approx(6.0 * 1024 / 3264)


def test_a_run_of_ones_own_is_scaled_by_the_optimizer_s_rule() -> None:
    base = Recipe(optimizer="adamw", lr=1e-3, total_steps=1000, warmup_steps=50, power=1.0, options={"weight_decay": 0.01})
    records = [samples.record("dense", workload="lenet5", recipe=base.to_json())]
    found = of_records("lenet5", records)
    assert found and of_records("vgg-16", records) is None
    batch = int(records[0].strategy["global_batch_size"])
    recipe = found.at(16 * batch, 1e6 * batch)
    assert recipe and recipe.lr == scaled(1e-3, batch, 16 * batch, "sqrt") and recipe.warmup_steps == 50
    assert recipe.options == {"weight_decay": 0.01} and recipe.source.endswith("your run")
    assert found.at(batch, 1e6, "lamb") is None and "your run used adamw" in found.why_not("lamb")
    assert TrainingTarget(total=1e5, recipes=found).optimizer(()) == "adamw"


def test_the_command_takes_the_recipe_s_optimizer_unless_one_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    small = "--device A100 --devices-per-node 2 --max-nodes 1 --sharding ddp --compression dense --precision bf16"
    data = answer(capsys, f"plan bert-large {small}")
    assert data["best"]["strategy"]["optimizer"] == "lamb" and data["best"]["recipe"]["lr"] < 0.004
    assert "from MLPerf's checkpoint; a sample is one sequence of 512 tokens, 256 of them padding" in data["work"]
    assert answer(capsys, f"plan bert-large {small} --optimizer adam")["best"]["recipe"] is None
    for text, said in (("accuracy=2", "a share from 0 to 1"), ("accuracy=0.9", "no run of bert-large without compression")):
        code, _, err = run(capsys, f"plan bert-large {small} --target {text}")
        assert code == 2 and said in err and err.count("\n") == 1


def test_one_run_with_its_noise_scale_is_a_target(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    one = samples.record("dense", workload="lenet5")
    curve = tuple({**entry, "noise_scale": 900.0} for entry in one.curve)
    runs: list[RunRecord] = [replace(one, curve=curve)]
    monkeypatch.setattr("paceline.cli.arguments.training_target.run_records", lambda paths: runs)
    monkeypatch.setattr("paceline.cli.arguments.prediction_inputs.measured_steps", lambda o: [])
    asked = "plan lenet5 --device A100 --max-nodes 1 --records here --target accuracy=0.9"
    data = answer(capsys, asked)
    assert data["critical_batch"] == pytest.approx(900) and "noise scale" in data["assumptions"][0]
    # another run without one does not take it away, nor do two make a sweep
    batch = one.strategy["global_batch_size"]
    runs.insert(0, replace(one, strategy={**one.strategy, "global_batch_size": 2 * batch}))
    never = tuple({**entry, "accuracy": 0.1} for entry in one.curve)
    runs.append(replace(one, strategy={**one.strategy, "global_batch_size": 4 * batch}, curve=never))
    assert answer(capsys, asked)["critical_batch"] == pytest.approx(900)
    assert data["learning_rates"].startswith("unknown") and data["best"]["strategy"]["global_batch_size"] <= 1800
