"""The exchange beside a pipeline: buckets against a plain simulation, exposed seconds, memory of Megatron's optimizer."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import Cluster, Strategy, Workload
from paceline.prediction import Prediction, Predictor
from paceline.prediction.mesh.exchange_overlap import megatron_bucket_bytes
from paceline.prediction.mesh.mesh_step import MeshStep, mesh_step
from paceline.prediction.mesh.tensor_parallel import share
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=16, hidden=2048, heads=16, vocabulary=51200, tied=False), 512)
ON = Cluster.named("2x8 A100", network="4x InfiniBand HDR")
TUNED = Predictor(framework="tuned")


def strategy(**choices: object) -> Strategy:
    whole = {
        "world_size": 16,
        "pipeline": 4,
        "grad_accum_steps": 4,
        "precision": "bf16",
        "optimizer": "adam",
        "sharding": "zero1",
    }
    return Strategy.of(**{"global_batch_size": 64, **whole, **choices})


def placed(predictor: Predictor = TUNED, **choices: object) -> MeshStep:
    return mesh_step(predictor.model(GPT), ON, strategy(**choices).settled(GPT, ON))


def predicted(predictor: Predictor = TUNED, **choices: object) -> Prediction:
    return predictor.step(GPT, ON, strategy(**choices))


@pytest.mark.parametrize("virtual", [1, 2, 4])
def test_a_bucket_starts_behind_its_gradients_and_the_bucket_before(virtual: int) -> None:
    step = placed(virtual_stages=virtual, bucket_bytes=100_000_000)
    for number, (own, stage, beside) in enumerate(zip(step.steps, step.stages, step.beside, strict=True)):
        exchange, costs = own.costs.exchange, own.costs
        assert len(exchange.buckets) > 2
        # By hand: each layer's last backward pass, from the end of its part's pass back.
        ready = {}
        for turn, layers in enumerate(stage.parts):
            end = step.pipeline.last_pass(number + 4 * turn)[1]
            below = 0.0
            for layer in layers:
                ready[layer] = end - below
                below += float(costs.backward.total[layer]) * costs.slowest
        clock = 0.0
        for index, layers in enumerate(exchange.plan.partition.layers):
            start = max(clock, max(ready[layer] for layer in layers))
            assert beside.starts[index] == pytest.approx(start)
            clock = start + float(exchange.buckets[index])
        tail = max(0.0, clock - step.pipeline.ends[number])
        hidden = float(exchange.buckets.sum()) - tail
        assert beside.after_s == pytest.approx(tail + own.pieces.penalty * hidden)


def test_weights_are_there_when_the_next_forward_pass_needs_them() -> None:
    step = placed(virtual_stages=2, bucket_bytes=100_000_000)
    for number, (own, stage, beside) in enumerate(zip(step.steps, step.stages, step.beside, strict=True)):
        exchange, forward = own.costs.exchange, own.costs.forward.total * own.costs.slowest
        ends = beside.gather_starts + exchange.gathers[0]
        for index, first in enumerate(exchange.plan.first.tolist()):
            turn = next(i for i, layers in enumerate(stage.parts) if first in layers)
            begin = stage.parts[turn].start
            needed = step.pipeline.first_start(number + 4 * turn) + float(forward[begin:first].sum())
            assert ends[index] <= needed + beside.delay_s + 1e-12
        order = np.argsort(beside.gather_starts)
        assert all(beside.gather_starts[b] >= ends[a] - 1e-12 for a, b in itertools.pairwise(order.tolist())), (
            "one after the other"
        )
    assert not placed(sharding="ddp").beside[0].gather_starts.size and placed(sharding="ddp").beside[0].delay_s == 0


choices = st.fixed_dictionaries(
    {
        "virtual_stages": st.sampled_from([1, 2, 4]),
        "sharding": st.sampled_from(["ddp", "zero1", "zero3"]),
        "grad_accum_steps": st.sampled_from([4, 8]),
        "recompute": st.sampled_from(["none", "full"]),
    }
)


@settings(max_examples=15)
@given(choices)
def test_what_is_waited_for_sums_to_the_step(chosen: dict[str, object]) -> None:
    p = predicted(**chosen)
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s, rel=1e-6) and min(p.exposed.values()) >= 0
    assert p.low_s <= p.step_time_s <= p.high_s
    assert max(event.end_s for event in p.timeline) == pytest.approx(p.step_time_s, rel=1e-6)


def test_parts_of_a_stage_hide_the_exchange_of_the_later_ones() -> None:
    slow = Cluster.named("8x2 A100", network="100Gb/s")  # the replicas of a stage lie in two nodes
    waits = []
    for virtual in (1, 2, 4):
        p = TUNED.step(GPT, slow, strategy(virtual_stages=virtual, sharding="ddp"))
        waits.append(p.exposed["network"] + p.exposed["intra-node link"])
    assert waits[0] > waits[1] > waits[2]


def test_without_overlap_the_exchange_follows_the_passes() -> None:
    alone = replace(TUNED, overlap=False)
    assert placed(alone).beside == ()
    assert predicted().step_time_s < predicted(alone).step_time_s
    assert placed(Predictor()).beside == (), "ordinary software does not exchange part by part"


def test_a_slower_loader_sets_the_step() -> None:
    p = predicted(replace(TUNED, loader=10.0))
    assert p.step_time_s == pytest.approx(64 / 10.0)
    assert sum(p.exposed.values()) == pytest.approx(p.step_time_s) and p.bottleneck == "input pipeline"


@pytest.mark.parametrize(
    ("sharding", "precision", "each", "shared"),
    [("ddp", "bf16", 18, 0), ("zero1", "bf16", 6, 12), ("ddp", "fp32", 16, 0), ("zero1", "fp32", 8, 8)],
)
def test_bytes_of_a_parameter_are_megatrons(sharding: str, precision: str, each: float, shared: float) -> None:
    # Megatron-Core, user guide, distributed optimizer: 18, 6 + 12 / d; 16, 8 + 8 / d
    on = Cluster.named("8 A100")
    chosen = {"world_size": 8, "tensor": 2, "global_batch_size": 8, "precision": precision, "optimizer": "adam"}
    memory = Predictor().step(GPT, on, Strategy.of(**chosen, sharding=sharding)).memory
    own = share(GPT, 2, sequence=False).workload.num_parameters
    held = sum(memory[name] for name in ("weights", "gradients", "optimizer state", "buckets"))
    assert held / own == pytest.approx(each + shared / 4)


def test_a_distributed_optimizer_scatters_fp32_gradients_and_gathers_16_bit_weights() -> None:
    on = Cluster.named("8 A100")
    chosen = {"world_size": 8, "tensor": 2, "global_batch_size": 8, "precision": "bf16", "optimizer": "adam"}
    moved = {name: Predictor().step(GPT, on, Strategy.of(**chosen, sharding=name)) for name in ("ddp", "zero1")}
    own = share(GPT, 2, sequence=False).workload.num_parameters
    saved = moved["ddp"].wire_bytes_per_device - moved["zero1"].wire_bytes_per_device
    assert saved == pytest.approx(3 / 4 * own * (2 * 4 - (4 + 2)), rel=1e-5)


def test_megatrons_buckets_grow_with_the_replicas() -> None:
    assert megatron_bucket_bytes(8) == 160_000_000 and megatron_bucket_bytes(64) == 256_000_000
