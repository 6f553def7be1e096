"""Many strategies with tasks at once: batches that cannot be grouped, and bounds below the whole step."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.prediction import Predictor
from paceline.prediction.layouts.many_tasks import least_before_s
from paceline.strategy import Strategy
from paceline.workload import Workload

NETWORK = Workload.named("llama-3-8b", 1024)
CLUSTER = Cluster.named("8 H100")
PREDICTOR = Predictor()
ZERO3: dict[str, Any] = {"sharding": "zero3"}


def test_a_plan_leaves_out_batches_of_no_whole_groups() -> None:
    many = PREDICTOR.many(
        NETWORK,
        [
            (CLUSTER, Strategy.of(world_size=8, global_batch_size=batch, precision="bf16", **ZERO3, task="grpo:samples=16"))
            for batch in (8, 16)
        ],
    )
    assert list(many.refused) == [0] and "groups of 16" in many.refused[0]
    assert many.fits.tolist() == [False, True]


@pytest.mark.parametrize("task", ["dpo", "grpo", "grpo:engine=hf,old=no", "grpo:rate=900,reference=none,reward=1s"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_bounds_are_below_the_parts_before_the_training(task: str, tensor: int) -> None:
    strategy = Strategy.of(
        world_size=8, tensor=tensor, global_batch_size=64, grad_accum_steps=4, precision="bf16", sharding="zero1", task=task
    )
    p = PREDICTOR.step(NETWORK, CLUSTER, strategy)
    assert 0 < least_before_s(PREDICTOR.model(NETWORK), CLUSTER, strategy) <= p.step_time_s - p.parts["train"]
