"""Simpler strategies that may not fit are named if the model does not tell their step from the best's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Cluster, Workload
from paceline.planning import Goal, Space, TrainingTarget, plan
from paceline.planning.search.choice import Plan
from paceline.planning.search.tight_layouts import simpler_if_it_fits
from paceline.prediction import Predictor
from paceline.strategy import Strategy
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=2048, heads=16, vocabulary=51200), 512, name="gpt-8x2048")
PLACE = Cluster.named("1x8 A100", network="100Gb/s")
SHARDED = [
    Strategy.of(world_size=8, global_batch_size=32, precision="bf16", optimizer="adamw", sharding="zero3", recompute=name)
    for name in ("full", "none")
]


@pytest.fixture(scope="module")
def found() -> Plan:
    names = {"compressions": ("dense",), "shardings": ("ddp",), "precisions": ("bf16",), "schedules": ("1f1b",)}
    space = Space(clusters=(PLACE,), batches=(32,), tensors=(2,), pipelines=(2,), optimizer="adamw", **names)  # type: ignore[arg-type]
    return plan(GPT, space, Goal("fastest"), TrainingTarget(total=1e6))


def named(found: Plan, memory_bytes: float, index: int, share: float = 1.0) -> str:
    """The answer for devices of so much memory, where the best's step takes this share of one in ``SHARDED``."""
    device = replace(PLACE.device, memory=replace(PLACE.device.memory, value=memory_bytes))
    place, candidates = replace(PLACE, device=device), SHARDED
    steps = Predictor().many(GPT, [(place, s) for s in candidates])
    prediction = replace(found.best.prediction, step_time_s=float(steps.step_s[index]) * share)
    best = replace(found.best, cluster=place, prediction=prediction)
    return simpler_if_it_fits(GPT, best, [(place, s) for s in candidates], steps, Predictor())


def test_only_a_step_that_may_not_fit_and_is_not_told_apart_is_named(found: Plan) -> None:
    full, none = Predictor().many(GPT, [(PLACE, s) for s in SHARDED]).memory_bytes.tolist()
    assert full * 1.03 < none, "the two lie too close: the test needs another network"
    text = named(found, full * 1.01, 0, 0.97)
    assert "zero3, recomputing" in text and "may not fit" in text and "slower" in text
    text = named(found, none * 1.01, 1)
    assert "zero3" in text and "recomputing" not in text and "as fast" in text
    assert named(found, full * 0.99, 0) == named(found, none * 2, 1) == named(found, full * 1.01, 0, 0.5) == ""


def test_nothing_is_simpler_than_a_best_that_divides_nothing(found: Plan) -> None:
    assert found.may_not_fit == "" == found.to_json()["may_not_fit"], "all fits here"
    best = replace(found.best, strategy=SHARDED[0])
    steps = Predictor().many(GPT, [(PLACE, SHARDED[1])])
    assert simpler_if_it_fits(GPT, best, [(PLACE, SHARDED[1])], steps, Predictor()) == ""
