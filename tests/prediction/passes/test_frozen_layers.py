"""Frozen weights: which layers have them, and that they are held whole or gathered and timed."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning import Goal, Space, plan
from paceline.prediction import Prediction, Predictor
from paceline.prediction.mesh.stages import stages
from paceline.prediction.mesh.tensor_parallel import share
from paceline.prediction.passes.frozen_layers import frozen_beside, frozen_of_layers
from paceline.prediction.step.memory import numbers_of
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
    assert best.parallelism.sharding.name == "zero3" and numbers_of(best) == "narrow"


def test_each_pass_gathers_them_once_at_the_speed_of_the_link() -> None:
    """Closed form: 7/8 of all bytes at the bandwidth that collectives reach on NVLink, forward and backward alike."""
    p = step(sharding="zero3")
    seconds = 7 / 8 * 2 * (LORA.frozen + LORA.num_parameters) / Predictor().typical.bandwidth(ON.intra_link)
    for way in ("gather_forward", "gather_backward"):
        gathered = sum(event.duration_s for event in p.timeline if event.name.startswith(way))
        assert gathered == pytest.approx(seconds, rel=0.03)
    assert p.comm_s == pytest.approx(2 * seconds, rel=0.03)


MESHES = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 4), (1, 4, 4), (2, 2, 4), (4, 2, 8)]


@pytest.mark.parametrize(("tensor", "pipeline", "micro"), MESHES)
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_a_divided_network_holds_and_gathers_its_part(tensor: int, pipeline: int, micro: int, sharding: str) -> None:
    """Tensor groups and stages divide them; what is left is whole under zero2, and under zero3 divided and gathered by the
    replicas in both passes of every micro step."""
    data = 8 // (tensor * pipeline)
    mesh = {"tensor": tensor, "pipeline": pipeline, "grad_accum_steps": micro, "global_batch_size": 8 * micro}
    p, whole = step(sharding=sharding, **mesh), step(sharding="ddp", **mesh)
    part = LORA.frozen / (tensor * pipeline)
    sharers = data if sharding == "zero3" else 1
    assert p.memory["frozen weights"] == pytest.approx(2 * part / sharers, rel=0.03)
    gathered = p.wire_bytes_per_device - whole.wire_bytes_per_device
    if sharding == "zero3":
        assert gathered == pytest.approx(micro * 2 * (data - 1) / data * 2 * part, rel=0.03, abs=1e9)
        assert p.comm_s >= whole.comm_s
    else:
        assert gathered < 0.01 * part


@pytest.mark.long
def test_every_layout_that_a_plan_ranks_holds_them_and_fits() -> None:
    space = Space(
        clusters=(ON,),
        batches=(8,),
        precisions=("bf16",),
        exchanges=("allreduce",),
        compressions=("dense",),
        tensors=(1, 4),
        pipelines=(1, 2),
        contexts=(1,),
    )
    for choice in plan(LORA, space, Goal("fastest")).ranking:
        mesh, p = choice.strategy.parallelism, choice.prediction
        sharers = mesh.data if mesh.sharding.name == "zero3" else 1
        held = 2 * LORA.frozen / (mesh.tensor * mesh.pipeline * sharers)
        assert p.memory["frozen weights"] == pytest.approx(held, rel=0.05) and p.fit == "fits"
