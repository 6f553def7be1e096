"""Numbers of micro steps that a plan tries: micro batches of few samples where no other fits."""

from __future__ import annotations

import pytest

from paceline import Cluster, Workload
from paceline.planning.search.goal import Goal
from paceline.planning.search.plan import plan
from paceline.planning.search.space import PLAIN_GRADIENTS, UNDIVIDED, Space
from paceline.planning.search.training_target import TrainingTarget
from paceline.prediction import ORDINARY
from paceline.strategy import Strategy

NODES = Cluster.named("2x8 H100, 8x InfiniBand NDR")
WHOLE = {**UNDIVIDED, **PLAIN_GRADIENTS, "precisions": ("bf16",), "shardings": ("zero3",), "recomputes": (False,)}


@pytest.mark.parametrize(("network", "batch"), [("nemotron-h-8b", 256), ("llama-3-8b", 512), ("llama-3-8b", 272)])
def test_micro_batches_of_one_sample_are_tried_where_no_other_fits(network: str, batch: int) -> None:
    workload = Workload.named(network)
    space = Space(clusters=(NODES,), batches=(batch,), **WHOLE)  # type: ignore[arg-type]
    best = plan(workload, space, Goal("fastest"), TrainingTarget(), offers=False).best
    assert best.strategy.micro_batch_size == 1 and best.strategy.parallelism.micro_batches == batch // 16
    alone = Strategy.of(
        world_size=16, global_batch_size=batch, sharding="zero3", precision="bf16", grad_accum_steps=batch // 16
    ).settled(workload, NODES)
    assert best.prediction.step_time_s == pytest.approx(ORDINARY.step(workload, NODES, alone).step_time_s, rel=0.02)


def test_named_micro_steps_are_the_only_ones() -> None:
    space = Space(clusters=(NODES,), batches=(64,), accumulations=(1, 4), **WHOLE)  # type: ignore[arg-type]
    best = plan(Workload.named("llama-3-8b"), space, Goal("fastest"), TrainingTarget(), offers=False).best
    assert best.strategy.parallelism.micro_batches == 4
