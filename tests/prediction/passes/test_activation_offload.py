"""Activations in the host's memory against closed forms, and one step against many at once."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import Cluster, Strategy, Workload
from paceline.prediction import Prediction, Predictor
from paceline.prediction.passes.activation_offload import BlocksOnHost, blocks_on_host, with_copies
from paceline.prediction.passes.compute import Seconds
from paceline.prediction.passes.recompute import recomputed
from paceline.strategy.offload import HostActivations
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import block

NET, ON = Workload.named("gpt3-1.3b"), Cluster.named("8 A100")
NONE, FULL = Recompute.of("none"), Recompute.of("full")


def step(cluster: Cluster = ON, **choices: object) -> Prediction:
    whole = {"world_size": cluster.world_size, "global_batch_size": 32, "precision": "bf16", "sharding": "zero3"}
    return Predictor().step(NET, cluster, Strategy.of(**{**whole, **choices}))


def waits(copies: list[float], whole: bool) -> tuple[list[float], list[float]]:
    """Waits of four blocks of one layer, of a second forward and two backward, and a last layer."""
    ends = np.arange(len(copies))
    layers = len(copies) + 1
    passes = [Seconds(np.full(layers, s), np.zeros(layers), np.zeros(layers)) for s in (1.0, 2.0)]
    blocks = BlocksOnHost(ends, np.ones(len(copies)), whole)
    first, second = with_copies((passes[0], passes[1]), (passes[0].total, passes[1].total), np.array(copies), blocks)
    assert (first.total == passes[0].total + first.host).all()
    return np.asarray(first.host).tolist(), np.asarray(second.host).tolist()


def test_a_pass_takes_the_longer_of_a_block_and_the_copy_of_the_one_before() -> None:
    assert waits([3.0, 3.0, 3.0, 3.0], whole=True) == ([0, 2, 2, 2, 0], [1, 1, 1, 0, 0])
    assert waits([3.0, 3.0, 3.0, 3.0], whole=False) == ([0, 2, 2, 2, 2], [1, 1, 1, 1, 0])
    assert waits([1.0, 1.0, 1.0, 1.0], whole=False) == ([0] * 5, [0] * 5)


def test_the_host_has_what_the_blocks_store() -> None:
    all_of_them = blocks_on_host(NET, NONE, HostActivations(), "narrow")
    plan = recomputed(NET, NONE, "narrow")
    assert all_of_them.whole and len(all_of_them.ends) == 24
    rest = sum(layer.kept_bytes("narrow") for layer in NET.layers if not block(f"{layer.name}."))
    assert all_of_them.kept_bytes == pytest.approx(plan.kept_bytes - rest)
    assert all_of_them.buffer_bytes == pytest.approx(all_of_them.kept_bytes / 12)
    some = blocks_on_host(NET, NONE, HostActivations(layers=6), "narrow")
    assert some.kept_bytes == pytest.approx(all_of_them.kept_bytes / 4) and not some.whole
    checkpoints = blocks_on_host(NET, FULL, HostActivations(checkpoints=True), "narrow")
    assert checkpoints.kept_bytes == pytest.approx(24 * 2 * 2048 * 2048, rel=0.01)  # inputs of blocks: tokens x width x 2 bytes
    in_part = blocks_on_host(NET, Recompute.of("full", 6), HostActivations(checkpoints=True), "narrow")
    assert in_part.kept_bytes == pytest.approx(checkpoints.kept_bytes / 4)


def test_memory_falls_by_what_leaves_and_the_step_waits_for_the_host() -> None:
    here, there = step(), step(offload="activations")
    blocks = blocks_on_host(NET, NONE, HostActivations(), "narrow")
    moved = here.memory["activations"] - there.memory["activations"]
    assert moved == pytest.approx(4 * (blocks.kept_bytes - blocks.buffer_bytes))
    assert there.bottleneck == "host" and there.step_time_s > here.step_time_s
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
    some = step(offload="activations", offload_layers=6)
    assert here.step_time_s < some.step_time_s < there.step_time_s and here.memory_bytes > some.memory_bytes
    assert Predictor().without("host").step(
        NET, ON, Strategy.of(world_size=8, global_batch_size=32, precision="bf16", sharding="zero3", offload="activations")
    ).step_time_s == pytest.approx(here.step_time_s)


def test_checkpoints_are_small_enough_to_hide() -> None:
    here, there = step(recompute="full"), step(recompute="full", offload="checkpoints")
    assert there.step_time_s == pytest.approx(here.step_time_s, rel=0.02)  # Unsloth: 1 to 2 % slower
    assert there.memory["activations"] < here.memory["activations"]


def test_many_at_once_have_the_numbers_of_each() -> None:
    rest = {"world_size": 8, "precision": "bf16", "sharding": "zero3", "recompute": "full"}
    each = [
        Strategy.of(**rest, global_batch_size=batch, offload=offload, offload_layers=layers)
        for offload in ("activations", "optimizer+checkpoints", "weights+optimizer+activations")
        for batch in (8, 64)
        for layers in (0, 5)
    ]
    table = Predictor().many(NET, [(ON, strategy) for strategy in each])
    for strategy, seconds, needed in zip(each, table.step_s, table.memory_bytes, strict=True):
        p = Predictor().step(NET, ON, strategy)
        assert (seconds, needed) == pytest.approx((p.step_time_s, p.memory_bytes))


def test_a_pipeline_offloads_what_its_stages_store() -> None:
    choices = {"pipeline": 2, "tensor": 2, "grad_accum_steps": 4, "sharding": "zero1"}
    here, there = step(**choices), step(**choices, offload="activations")
    assert there.memory["activations"] < here.memory["activations"] and there.step_time_s > here.step_time_s
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
