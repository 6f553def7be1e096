"""Frozen weights: which layers have them, and that they are held whole or gathered and timed."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning import Goal, Space, plan
from paceline.prediction import Prediction, Predictor
from paceline.prediction.frozen import frozen_beside, frozen_of_layers
from paceline.prediction.memory import numbers_of
from paceline.prediction.stages import stages
from paceline.prediction.tensor_parallel import share
from prediction_toys import make_workload

LORA = Workload.named("llama-2-70b-lora")
ON = Cluster.named("8 H100-SXM")


def step(**choices: object) -> Prediction:
    whole = {"world_size": 8, "global_batch_size": 8, "precision": "bf16", "optimizer": "adam", **choices}
    return Predictor().step(LORA, ON, Strategy.of(**whole))


def test_every_layer_has_the_matrices_that_it_multiplies_by() -> None:
    own = frozen_of_layers(LORA)
    assert own.sum() == LORA.frozen
    by_name = {layer.name: elements for layer, elements in zip(LORA.layers, own.tolist(), strict=True)}
    h, kv, ffn, vocabulary = 8192, 1024, 28672, 32000
    assert by_name["blocks.3.attention.qkv"] == h * (h + 2 * kv) and by_name["blocks.3.attention.project"] == h * h
    assert by_name["blocks.3.expand"] == by_name["blocks.3.contract"] == h * ffn
    assert by_name["head.logits"] == h * vocabulary
    assert by_name["tokens"] == pytest.approx(h * vocabulary, rel=0.01)  # and the norms of all blocks
    assert not by_name["blocks.3.attention.mix"]


def test_they_are_gathered_with_the_adapters_of_their_block() -> None:
    beside = frozen_beside(LORA)
    assert sum(beside.values()) == pytest.approx(LORA.frozen, rel=1e-9)
    assert frozen_beside(make_workload()) == {}
    own = frozen_beside(share(LORA, 8, sequence=True).workload)
    assert sum(own.values()) == pytest.approx(LORA.frozen / 8, rel=1e-6)
    parts = stages(LORA, 4, 1)
    assert sum(part.workload.frozen for part in parts) == pytest.approx(LORA.frozen, rel=1e-9)


def test_zero3_gathers_them_twice_and_waits() -> None:
    whole, shared = step(sharding="zero1"), step(sharding="zero3")
    moved = 2 * 7 / 8 * 2 * LORA.frozen  # in bf16, in both passes
    own = 3 * 7 / 8 * 2 * LORA.num_parameters
    assert shared.wire_bytes_per_device == pytest.approx(moved + own, rel=1e-4)
    assert whole.wire_bytes_per_device < 0.01 * shared.wire_bytes_per_device
    assert shared.comm_s > moved / 450e9
    assert whole.memory["frozen weights"] == 2 * LORA.frozen and shared.memory["frozen weights"] == 2 * LORA.frozen / 8
    block = LORA.frozen / 82
    assert 2 * 2 * block < shared.memory["gathered"] < 2 * 2 * block * 1.5, "two blocks at once"


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2"])
def test_elsewhere_nothing_gathers_them(sharding: str) -> None:
    p = step(sharding=sharding)
    assert p.memory["frozen weights"] == 2 * LORA.frozen and not p.fits
    assert p.wire_bytes_per_device < 12 * LORA.num_parameters


def test_a_plan_shares_them_out_where_they_do_not_fit_whole() -> None:
    whole = {"tensors": (1,), "pipelines": (1,), "contexts": (1,), "exchanges": ("allreduce",), "compressions": ("dense",)}
    space = Space(clusters=(ON,), batches=(8,), precisions=("bf16",), **whole)
    answer = plan(LORA, space, Goal("fastest"))
    best = answer.ranking[0].strategy
    assert best.parallelism.sharding == "zero3" and numbers_of(best) == "narrow"
