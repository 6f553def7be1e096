"""Bounds of layouts: never above the model's own step and memory, near to it where nothing waits, and the closed forms."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning.search.layout_space import dividing_shardings
from paceline.prediction import Predictor
from paceline.prediction.layouts.layout_bounds import LayoutBounds
from paceline.prediction.layouts.layout_slices import LayoutSlice, Shares, with_common
from paceline.prediction.layouts.pipeline_bounds import PipelineShape
from paceline.prediction.mesh.mesh_step import mesh_step
from paceline.strategy import SHARDINGS, Parallelism
from paceline.strategy.context_exchange import CONTEXT_EXCHANGES
from paceline.strategy.pass_order import SCHEDULES
from paceline.strategy.recompute import Recompute
from paceline.workload import TransformerShape

SMALL = Workload.from_shape(TransformerShape(layers=6, hidden=1024, heads=16, vocabulary=51200), 512, name="gpt-6x1024")
MIXTURE = Workload.named("mixtral-8x7b")
LLAMA = Workload.named("llama-2-7b")
TWO_NODES = Cluster.named("2x8 A100", network="8x InfiniBand HDR")
SLOW_NODES = Cluster.named("8x2 V100", network="10Gb/s")
TEMPLATE = Strategy.of(global_batch_size=1, optimizer="adamw")


def slices(
    workload: Workload, precision: str = "bf16", most: int = 8, experts: tuple[int, ...] = (1,)
) -> tuple[LayoutSlice, ...]:
    tensors = [(t, sequence) for t in (1, 2, 4, 8) for sequence in (False, True) if t <= most and (t > 1 or not sequence)]
    contexts = [(1, "ring"), (2, "ring"), (2, "all_to_all"), (4, "ring")]
    return tuple(
        LayoutSlice(
            tensor=tensor,
            sequence=sequence,
            context=context,
            context_exchange=CONTEXT_EXCHANGES[exchange],
            precision=precision,
            micro_batch_size=micro,
            recompute=Recompute.of(recompute),
            expert=expert,
        )
        for (tensor, sequence), (context, exchange), micro, recompute, expert in itertools.product(
            tensors, contexts, (1, 2, 3), ("none", "full", "selective", "selective:mlp,layernorm"), experts
        )
    )


def strategy(
    own: LayoutSlice,
    shape: PipelineShape,
    shares: Shares,
    batch: int,
    times: int,
    cluster: Cluster,
    common: Mapping[str, Any],
    template: Strategy = TEMPLATE,
) -> Strategy:
    mesh = Parallelism(
        data=cluster.world_size // (own.tensor * own.context * shape.stages),
        tensor=own.tensor,
        sequence=own.sequence,
        context=own.context,
        context_exchange=own.context_exchange,
        pipeline=shape.stages,
        virtual_stages=shape.virtual,
        schedule=shape.schedule,
        first_stage_layers=shape.ends[0],
        last_stage_layers=shape.ends[1],
        sharding=shares.sharding,
        shard_devices=shares.groups(own, shape.stages, cluster) or 0,
        micro_batches=times,
        recompute=own.recompute,
        expert=own.expert,
    )
    mesh = with_common(mesh, common)
    return replace(template, global_batch_size=batch, parallelism=mesh, precision=own.precision)


SHAPES = [PipelineShape(p, v, SCHEDULES["1f1b"]) for p, v in ((1, 1), (2, 1), (4, 1), (6, 1), (2, 2), (2, 3), (3, 2))]
SHAPES += [PipelineShape(p, 1, SCHEDULES[schedule]) for p in (2, 4) for schedule in ("gpipe", "zero_bubble")]
SHAPES += [
    PipelineShape(2, 1, SCHEDULES["1f1b"], (0, 1)),
    PipelineShape(3, 1, SCHEDULES["zero_bubble"], (3, 0)),
    PipelineShape(2, 2, SCHEDULES["1f1b"], (0, 2)),
]
SHARED = (*map(Shares, SHARDINGS.values()), *(Shares(level, True) for level in SHARDINGS.values() if level.shares_out))


@pytest.mark.everyday(
    "workload1-cluster1-predictor1-bf16-common1-4",
    "workload4-cluster4-predictor4-fp32-common4-4",
    "workload5-cluster5-predictor5-fp16-common5-4",
    "workload7-cluster7-predictor7-bf16-common7-4",
    others="long",
)
@pytest.mark.parametrize("most", [4, 8, pytest.param(24, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("workload", "cluster", "predictor", "precision", "common"),
    [
        (SMALL, TWO_NODES, Predictor(), "bf16", {}),
        (SMALL, TWO_NODES, Predictor(), "bf16", {"offload": "optimizer"}),
        (SMALL, TWO_NODES, Predictor(framework="tuned"), "bf16", {"gather_bits": 16, "gradient_bits": 16}),
        (SMALL, TWO_NODES, Predictor(framework="tuned"), "bf16", {}),
        (SMALL, TWO_NODES, Predictor(overlap=False), "fp32", {}),
        (SMALL, SLOW_NODES, Predictor(), "fp16", {}),
        (MIXTURE, TWO_NODES, Predictor(), "bf16", {}),
        (MIXTURE, TWO_NODES, Predictor(framework="tuned"), "bf16", {}),
        (LLAMA, Cluster.named("4x8 H100", network="8x InfiniBand NDR"), Predictor(framework="tuned"), "fp8", {}),
    ],
)
def test_no_bound_is_above_the_step_or_its_memory(
    workload: Workload, cluster: Cluster, predictor: Predictor, precision: str, common: Mapping[str, Any], most: int
) -> None:
    check_bounds(workload, cluster, predictor, precision, common, most)


@pytest.mark.long
@pytest.mark.parametrize("framework", ["ordinary", "tuned"])
@pytest.mark.parametrize(
    "choices",
    [
        {"optimizer": "muon"},
        {"optimizer": "adafactor"},
        {"optimizer": "lion_8bit"},
        {"optimizer": "adam", "state_bits": 16, "update": "fused"},
        {"optimizer": "adam", "update": "looped"},
    ],
    ids=str,
)
def test_no_bound_is_above_the_step_of_another_optimizer(choices: dict[str, Any], framework: str) -> None:
    update = {name: value for name, value in choices.items() if name != "optimizer"}
    names = dividing_shardings(tuple(SHARDINGS), choices["optimizer"], update, "bf16")
    shared = tuple(shares for shares in SHARED if shares.sharding.name in names)
    template = Strategy.of(global_batch_size=1, **choices)
    check_bounds(SMALL, TWO_NODES, Predictor(framework=framework), "bf16", {}, 8, template, shared)


def check_bounds(
    workload: Workload,
    cluster: Cluster,
    predictor: Predictor,
    precision: str,
    common: Mapping[str, Any],
    most: int,
    template: Strategy = TEMPLATE,
    shared: tuple[Shares, ...] = SHARED,
) -> None:
    draw = random.Random(len(precision))
    batches = (48, 96, 384)
    model = predictor.model(workload)
    experts = (1, 2, 8) if workload is MIXTURE else (1,)
    every = slices(workload, precision, cluster.devices_per_node, experts)
    if most < 24:  # a sample, as of the layouts below
        every = tuple(draw.sample(every, min(len(every), 6 * most)))
    legal = LayoutBounds(model, cluster, every, shared, batches, template, common)
    bounds = replace(legal, slices=tuple(x for x in every if not legal.refused(x)))
    near = []
    for shape in SHAPES:
        of_shape = bounds.bounds(shape)
        rows = np.flatnonzero(of_shape.legal.any(axis=(1, 2)))
        if not len(rows):
            continue
        seconds = bounds.seconds(shape, of_shape.micro_batches, rows)
        there = np.argwhere(of_shape.legal[rows])
        for at, number, batch in draw.sample(there.tolist(), min(24, len(there)))[:most]:
            own = bounds.slices[rows[at]]
            if own.tensor * own.context * shape.stages == 1:
                continue
            times = int(of_shape.micro_batches[rows[at], batch])
            chosen = strategy(own, shape, shared[number], batches[batch], times, cluster, common, template)
            step = mesh_step(model, cluster, chosen)
            closer = bounds.scheduled_seconds(shape, times, int(rows[at]), number)
            assert max(seconds[at, number, batch], closer) <= step.seconds, chosen
            needed = sum(step.memory().values())
            assert of_shape.memory_bytes[rows[at], number, batch] <= needed, chosen
            assert of_shape.memory_bytes[rows[at], number, batch] >= 0.8 * needed, chosen
            near.append(seconds[at, number, batch] / step.seconds)
    assert len(near) > 2.5 * most and np.median(near) > 0.6


def test_the_bound_of_even_stages_without_exchange_is_the_step() -> None:
    even = Workload.from_shape(TransformerShape(layers=32, hidden=2048, heads=16, vocabulary=256), 512)
    cluster = Cluster.named("8 H100")
    own = LayoutSlice(
        tensor=1,
        sequence=False,
        context=1,
        context_exchange=CONTEXT_EXCHANGES["ring"],
        precision="bf16",
        micro_batch_size=1,
        recompute=Recompute.of("none"),
    )
    model = Predictor().model(even)
    bounds = LayoutBounds(model, cluster, (own,), (Shares(SHARDINGS["ddp"]),), (16,), TEMPLATE)
    for shape in (
        PipelineShape(8, 1, SCHEDULES["1f1b"]),
        PipelineShape(8, 2, SCHEDULES["1f1b"]),
        PipelineShape(8, 4, SCHEDULES["1f1b"]),
    ):
        of_shape = bounds.bounds(shape)
        seconds = bounds.seconds(shape, of_shape.micro_batches, np.array([0]))
        step = mesh_step(model, cluster, strategy(own, shape, Shares(SHARDINGS["ddp"]), 16, 16, cluster, {}))
        assert seconds[0, 0, 0] == pytest.approx(step.seconds, rel=0.05)


def test_what_cannot_be_divided_says_why() -> None:
    def refused(**choices: object) -> str:
        usual = {"tensor": 1, "sequence": False, "context": 1, "context_exchange": "ring"}
        own = LayoutSlice(**{**usual, **choices}, precision="bf16", micro_batch_size=1, recompute="none")  # type: ignore[arg-type]
        return LayoutBounds(Predictor().model(SMALL), TWO_NODES, (own,), (Shares("ddp"),), (16,), TEMPLATE).refused(own)

    assert refused(tensor=16) == "a tensor-parallel group lies within a node"
    assert refused(tensor=3) == "the devices are no whole replicas of the divided network"
    assert "heads" in refused(context=2, context_exchange=CONTEXT_EXCHANGES["all_to_all"], tensor=1) or not refused(context=2)
    assert not refused(tensor=8, sequence=True)
