"""The optimizer that is written: one name for every target, the plan's rates where it has them, no silent rate elsewhere."""

from __future__ import annotations

import ast
import json
import tomllib
from typing import Any

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.optimizer import rate_factor
from paceline.planning.emit.targets import emit, emitted
from paceline.strategy.recipe import Recipe, published

PICTURES, TEXT = Workload.named("resnet-50"), Workload.named("gpt2")
EIGHT = Cluster.named("8 A100")
LARS = published("resnet-50", 2048, 45e6, optimizer="lars", target="mlperf")
RECIPES = [
    LARS,
    published("bert-large", 8192, 4.2e6, optimizer="lamb", target="mlperf"),  # begins before its first step
    Recipe(optimizer="momentum", lr=0.1, total_steps=50, warmup_steps=5, power=1, end_lr=0.01),
    Recipe(optimizer="adam", lr=0.1, total_steps=50, power=0),
    Recipe(optimizer="adam", lr=0.1, total_steps=5, warmup_steps=5),
]


def job(target: str, workload: Workload = TEXT, recipe: Recipe | None = None, **choices: Any) -> EmittedJob:
    usual = {"world_size": 8, "global_batch_size": 2048, "precision": "bf16"}
    return EmittedJob(target, Strategy.of(**{**usual, **choices}), workload, EIGHT, recipe)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.optimizer)
def test_the_written_rates_are_those_of_the_recipe(recipe: Recipe) -> None:
    factor = eval(rate_factor(recipe))
    for step in {0, 1, recipe.warmup_steps, recipe.warmup_steps + 1, recipe.total_steps // 2, recipe.total_steps + 1}:
        assert factor(step) == pytest.approx(recipe.factor(step))


def test_a_script_has_the_plan_s_recipe() -> None:
    text = emitted(job("torchrun", PICTURES, LARS, optimizer="lars")).text
    line = next(line for line in text.splitlines() if "paceline.LARS(" in line)
    call = ast.parse(line.removeprefix("#").strip()).body[0]
    assert isinstance(call, ast.Assign) and isinstance(call.value, ast.Call)
    given = {word.arg: ast.literal_eval(word.value) for word in call.value.keywords}
    assert given.pop("lr") == pytest.approx(LARS.lr, rel=1e-5) and given == LARS.arguments
    assert "lr=..." not in text and f"LambdaLR(optimizer, {rate_factor(LARS)})" in text and LARS.source in text
    assert "lr=..." in emitted(job("torchrun", PICTURES, optimizer="lars")).text


@pytest.mark.parametrize("target", ["torchrun", "accelerate", "deepspeed", "torchtitan"])
def test_every_target_writes_the_same_optimizer(target: str) -> None:
    for optimizer, name in (("", "Adam"), ("adam", "Adam"), ("adamw", "AdamW")):
        text = emit(target, job(target, sharding="zero3", optimizer=optimizer).strategy, TEXT, EIGHT)
        assert f"torch.optim.{name}(" in text or f'"{name}"' in text


def test_deepspeed_gets_no_rate_that_nobody_chose() -> None:
    file = emitted(job("deepspeed", optimizer="momentum", recipe=None))
    assert json.loads(file.text)["optimizer"] == {"type": "SGD", "params": {"lr": "auto", "momentum": 0.9}}
    assert 'The learning rate is "auto" in the file' in file.left
    names = {name: emitted(job("deepspeed", optimizer=name, recipe=None)).text for name in ("sgd", "adam", "adamw", "lamb")}
    assert [json.loads(text)["optimizer"]["type"] for text in names.values()] == ["SGD", "Adam", "AdamW", "Lamb"]
    recipe = RECIPES[2]
    file = emitted(job("deepspeed", PICTURES, recipe, optimizer="momentum"))
    assert json.loads(file.text)["optimizer"]["params"]["lr"] == recipe.lr
    assert f"LambdaLR(optimizer, {rate_factor(recipe)})" in file.left


@pytest.mark.parametrize(
    ("target", "default"), [("megatron", "add --lr"), ("nemo", "the recipe's own"), ("torchtitan", "8e-4")]
)
def test_a_file_without_a_rate_says_which_then_counts(target: str, default: str) -> None:
    file = emitted(job(target, optimizer="adamw", sharding="zero3"))
    assert default in file.left
    if target == "torchtitan":
        assert f"# {file.left}\n" in file.text and "lr" not in tomllib.loads(file.text)["optimizer"]
