"""The optimizer that is written: one name for every target, the plan's rates where it has them, no silent rate elsewhere."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.planning.emit.job import EmittedJob
from paceline.planning.emit.optimizer import rate_factor
from paceline.planning.emit.rates import peak_rate
from paceline.planning.emit.targets import emit, emitted
from paceline.strategy.recipe import Recipe, published

PICTURES, TEXT, LLAMA = Workload.named("resnet-50"), Workload.named("gpt2"), Workload.named("llama-3.2-1b")
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
        text = emit(target, job(target, sharding="zero3", optimizer=optimizer).strategy, LLAMA, EIGHT)
        assert f"torch.optim.{name}(" in text or f'"{name}"' in text


def test_muon_takes_the_model() -> None:
    """The file gives Muon the model, whose names divide its tensors; torch's ZeRO-1 hides them."""
    assert "optimizer = paceline.Muon(model, lr=...)" in emitted(job("torchrun", LLAMA, optimizer="muon")).text
    assert "paceline.Muon(self, lr=...)" in emitted(job("lightning", LLAMA, optimizer="muon")).text
    with pytest.raises(UserError, match="give sharding ddp or zero3"):
        emitted(job("torchrun", LLAMA, optimizer="muon", sharding="zero1"))


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


@pytest.mark.parametrize("target", ["megatron", "nemo", "torchtitan", "deepspeed"])
def test_a_file_names_the_source_of_its_rate(target: str) -> None:
    file = emitted(job(target, LLAMA, optimizer="adamw", sharding="zero3"))
    said = "The learning rate 0.0002 is GPT-3's for this size (Brown et al. 2020, table 2.1); choose your own."
    assert said in file.left and (target == "deepspeed" or f"# {said}\n" in file.text)  # 1.24 billion weights: those of 1.3


def test_rates_of_sizes_between_published_ones_lie_between_theirs() -> None:
    def rate(name: str, optimizer: str = "adamw") -> float | None:
        return peak_rate(job("megatron", Workload.named(name), optimizer=optimizer))

    assert [rate(name) for name in ("gpt3-125m", "gpt3-2.7b", "gpt3-175b")] == [0.0006, 0.00016, 6e-05]
    between = rate("llama-2-70b")
    assert between is not None and 6e-05 < between < 1e-4
    assert rate("gpt2", "sgd") is None and rate("resnet-50") is None
    assert "--lr, --min-lr" in emitted(job("megatron", optimizer="sgd")).left
