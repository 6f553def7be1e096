"""The trainer of a run: which one a strategy gets, and that its optimizer has no more than this rank updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from distributed import launch_once
from paceline.training.runs.checkpoints.run_state import own_part
from paceline.training.runs.data import load
from paceline.training.runs.starting_model import starting_model
from paceline.training.runs.trainers import make_trainer
from training_jobs import job

CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("Trainer", {}),
    "zero1": ("SharedUpdateTrainer", {"sharding": "zero1"}),
    "zero2": ("ShardedTrainer", {"sharding": "zero2"}),
    "zero3": ("ShardedTrainer", {"sharding": "zero3"}),
    "copies": ("ShardedTrainer", {"sharding": "zero3", "shard_devices": 2}),
    "zero1 in copies": ("SharedUpdateTrainer", {"sharding": "zero1", "shard_devices": 2}),
    "local": ("LocalTrainer", {"sync_every": 4}),
}


def trainers(rank: int, workers: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (_, choices) in CHOICES.items():
        run = job("unused", workers=workers, optimizer="adam")
        run = replace(run, strategy=run.strategy.changed(**choices))
        trainer, recipe = make_trainer(run, starting_model(run), load(run.data), torch.device("cpu"))
        trainer.train_epoch(0, None) if name == "local" else trainer._step(*next(trainer.batches(0)))
        shards = own_part(trainer)["shards"]
        found[name] = {
            "kind": type(trainer).__name__,
            "optimizer": recipe.optimizer,
            "sharers": trainer.sharers,
            "model": sum(rows.numel() for rows, _, _ in shards.get("model", {}).values()),
            "state": sum(r["exp_avg"][0].numel() for r in shards.get("optimizer", {}).get("state", {}).values()),
            "alike": sum(v.numel() for v in trainer.weights().values()),
            "alike state": sum(v["exp_avg"].numel() for v in trainer.optimizer_state()["state"].values() if "exp_avg" in v),
            "all": sum(p.numel() for p in starting_model(run).parameters()),
            "buffers": sum(b.numel() for b in starting_model(run).buffers()),
        }
    return found


@pytest.mark.parametrize("name", CHOICES)
def test_every_element_of_weights_and_optimizer_is_written_once(name: str) -> None:
    results = [result[name] for result in launch_once(trainers, 4)]
    first = results[0]
    assert {r["kind"] for r in results} == {CHOICES[name][0]} and first["optimizer"] == "adam"
    sharers = {"ddp": 0, "local": 0, "copies": 2, "zero1 in copies": 2}.get(name, 4)
    assert {r["sharers"] for r in results} == {sharers}
    assert sum(r["model"] for r in results) + first["alike"] == first["all"] + first["buffers"]
    assert sum(r["state"] for r in results) + first["alike state"] == first["all"]
    assert all(r["model"] == r["state"] == 0 for r in results[sharers:])
    if sharers and CHOICES[name][0] == "ShardedTrainer":
        assert first["alike"] == first["buffers"] and first["model"] <= first["all"] / sharers * 1.5
