"""Bytes on one device against the closed forms of the papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.csv_rows import read
from paceline.hardware import cluster as named_cluster
from paceline.hardware.device import Device
from paceline.prediction import Predictor, predict
from paceline.prediction.exchange.exchange_plan import exchange_plan
from paceline.prediction.passes.recompute import recomputed
from paceline.prediction.step.memory import (
    fit_of,
    memory_range,
    numbers_of,
    sample_bytes,
    unused_gradients,
    updated_weights,
    usable_bytes,
)
from paceline.strategy import Strategy
from paceline.strategy.frameworks.loss import IN_PLACE_LOSS, LOSSES, PLAIN_LOSS
from paceline.strategy.recompute import FULL_RECOMPUTE as FULL
from paceline.strategy.recompute import NO_RECOMPUTE as NOTHING
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import TORCH_SHARDINGS
from paceline.validation.case import Case
from paceline.validation.sets import llmfoundry
from paceline.workload import TransformerShape, Workload
from paceline.workload.builders.transformer import llama
from prediction_toys import make_cluster, make_workload
from same_figures.figures import MEASURED


def strategy(n: int, **kw) -> Strategy:
    return Strategy.of(world_size=n, global_batch_size=n * kw.pop("micro", 4), **kw)


def test_memory_of_zero():
    """Rajbhandari et al. 2020, figure 1: each level shares out one thing more."""
    weights, n = 4 * 4_000_000, 4
    shares = {
        name: predict(make_workload(), make_cluster(1, n), strategy(n, sharding=name, optimizer="adam", bucket_bytes=1)).memory
        for name in TORCH_SHARDINGS
    }
    assert [m["optimizer state"] for m in shares.values()] == [2 * weights, *[2 * weights / n] * 3]
    assert [m["gradients"] for m in shares.values()] == [weights, weights, weights / n, weights / n]
    assert [m["weights"] for m in shares.values()] == [weights, weights, weights / n, weights / n]
    unit = 4_000_000
    assert [m["gathered"] for m in shares.values()] == [0, 0, 2 * unit + weights, 4 * unit]
    plan = exchange_plan(make_workload(), strategy(n, sharding="zero1", bucket_bytes=1), make_cluster(1, n).places)
    assert updated_weights(strategy(n, sharding="zero1", bucket_bytes=1), plan) == unit + unit / n  # after the passes
    assert [m["buckets"] for m in shares.values()] == [weights, weights, 0, 0]


def test_the_distributed_optimizer_takes_6_bytes_and_12_shared_out() -> None:
    """Megatron-Core, user guide, distributed optimizer: a parameter takes 6 + 12 / d bytes with bf16 and fp32 gradients."""
    net, choices = Workload.named("gpt2"), {"precision": "bf16", "optimizer": "adam", "sharding": "distributed_optimizer"}
    memory = predict(net, named_cluster("A100", 4, 1), Strategy.of(world_size=4, global_batch_size=4, **choices)).memory
    number = net.num_parameters
    assert sum(memory[name] for name in ("weights", "gradients", "optimizer state")) == (6 + 12 / 4) * number
    assert memory["buckets"] == 0


def test_memory_of_a_dense_allreduce():
    p = predict(make_workload(), make_cluster(1, 2), strategy(2, micro=3, optimizer="adam"))
    weights = 4 * 4_000_000
    assert p.memory == {
        "weights": weights,
        "gradients": weights,
        "optimizer state": 2 * weights,
        "activations": 3 * 4 * 4000,
        "inputs": 3 * 4000,
        "frozen weights": 0,
        "gathered": 0,
        "buckets": weights,
        "unused gradients": 0,
        "error feedback": 0,
        "codec buffers": 0,
        "update": weights - 3 * 4 * 4000 - 3 * 4000,
        "workspace": 2 * 8.125 * 2**20,
        "context": 500 * 2**20,
        "communicators": (256 + 4 * 12) * 2**20,
        "fragments": 0.38 * 2**30,
    }


def test_frozen_weights_are_held_but_neither_updated_nor_exchanged():
    """Llama 2 70B has 68,976,648,192 of them (MLPerf Training v4.0): two bytes each in bf16."""
    net, four = Workload.named("llama-2-70b-lora"), named_cluster("H100-SXM", 4, 1)
    alone = predict(net, four, strategy(4, precision="bf16")).memory
    shared = predict(net, four, strategy(4, precision="bf16", sharding="zero3"))
    assert alone["frozen weights"] == 2 * 68_976_648_192 == 4 * shared.memory["frozen weights"]
    assert alone["gradients"] == 4 * net.num_parameters
    assert any("gathered in the forward and in the backward pass" in line for line in shared.assumptions)


@pytest.mark.parametrize(("sharding", "shared"), [("ddp", 1), ("zero1", 1), ("zero2", 1), ("zero3", 4)])
def test_frozen_weights_are_whole_but_under_zero3(sharding: str, shared: int) -> None:
    net, four = Workload.named("llama-2-70b-lora"), named_cluster("H100-SXM", 4, 1)
    memory = predict(net, four, strategy(4, precision="bf16", sharding=sharding)).memory
    assert memory["frozen weights"] == 2 * net.frozen / shared


@pytest.mark.parametrize(
    ("choices", "numbers"),
    [
        ({"precision": "tf32"}, "fp32"),
        ({"precision": "fp16"}, "autocast"),
        ({"precision": "fp8", "sharding": "zero1"}, "autocast"),
        ({"precision": "bf16", "sharding": "zero3"}, "narrow"),
        ({"precision": "bf16", "tensor": 2}, "fused"),
    ],
)
def test_16_bits_are_autocast_unless_the_weights_have_them_too(choices: dict[str, object], numbers: str) -> None:
    assert numbers_of(Strategy.of(world_size=4, global_batch_size=16, **choices)) == numbers  # type: ignore[arg-type]


def test_gpt2_under_autocast_keeps_its_loss_and_residuals_at_fp32() -> None:
    """1024 tokens, 12 layers of width 768, 12 heads, 50257 classes; masks of dropout have one byte, attention none."""
    s, h, v, layers = 1024, 768, 50257, 12
    norm = 4 * s * h + 2 * 4 * s
    block = 2 * norm + 2 * s * h * (1 + 3 + 1) + 4 * s * 12 + 2 * s * h * (1 + 4 + 4) + 2 * s * h
    expected = 8 * s + s * h + layers * block + norm + 2 * s * h + (4 * s * v + 8 * s)
    net = Workload.named("gpt2")
    assert sample_bytes(net, "autocast", NOTHING)["activations"] == pytest.approx(expected, rel=2e-4)
    narrow = expected - 25 * 2 * s * h
    assert sample_bytes(net, "narrow", NOTHING)["activations"] == pytest.approx(narrow, rel=1e-3)
    kept = sample_bytes(net, "autocast", FULL)["activations"]
    # The inputs of the blocks are fp32; one block is recomputed at a time.
    assert kept == pytest.approx(expected - (layers - 1) * block + layers * norm, rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "input_bytes", "second_copy"), [("fp8", 1, 1), ("fp8-current", 1, 0), ("nvfp4", 0.5625, 0)]
)
def test_fused_products_store_their_inputs_quantised(precision: str, input_bytes: float, second_copy: float) -> None:
    """A block of Llama 3 8B: 3 inputs of products, of 4,096, 4,096 and 14,336 numbers a token; delayed scaling copies a 4th."""
    net = Workload.named("llama-3-8b", 64)
    plain, other = (sample_bytes(net, "fused", precision=name)["activations"] for name in ("bf16", precision))
    quantised = (2 - input_bytes) * (4096 + 4096 + 14336) - second_copy * 4096
    assert plain - other == pytest.approx(32 * 64 * quantised)
    assert sample_bytes(net, "narrow", precision=precision) == sample_bytes(net, "narrow")
    dropped = [sample_bytes(net, "fused", Recompute.of("selective:mlp"), name)["activations"] for name in ("bf16", precision)]
    assert dropped[1] < dropped[0] < plain


@pytest.mark.parametrize(
    ("device", "precision", "copies"), [("B200", "fp8-current", 1), ("H100-SXM", "fp8-current", 2), ("B200", "mxfp8", 66 / 32)]
)
def test_blackwell_needs_no_transposed_weights_of_scales_by_tensor(device: str, precision: str, copies: float) -> None:
    net, on = Workload.named("gpt2"), named_cluster(device, 4, 1)
    of = strategy(4, precision=precision, sharding="distributed_optimizer")
    weights, plain = (predict(net, on, one).memory["weights"] for one in (of, of.changed(precision="bf16")))
    assert weights - plain == pytest.approx(copies * net.num_parameters)


def test_a_loss_of_plain_pytorch_needs_twelve_bytes_a_logit() -> None:
    s, v = 1024, 50257
    net = Workload.named("gpt2")
    for numbers, more in (("fp32", 2), ("autocast", 2), ("narrow", 2), ("fused", 0)):
        plain, eager = (sample_bytes(net, numbers, loss=own)["activations"] for own in (IN_PLACE_LOSS, PLAIN_LOSS))  # type: ignore[arg-type]
        assert eager - plain == pytest.approx(more * 4 * s * v, rel=1e-4)
    loss = next(layer.activation_bytes for layer in net.layers if layer.kind == "loss")
    stored = recomputed(net, FULL, "autocast").kept_bytes  # the loss is over before the first block is recomputed
    assert sample_bytes(net, "autocast", FULL, loss=PLAIN_LOSS)["activations"] == stored + 2 * loss
    few = Workload.from_shape(TransformerShape(layers=3, hidden=256, heads=4, vocabulary=64), 96)
    plan, loss = recomputed(few, FULL, "autocast"), 4 * 96 * 64 + 8 * 96
    assert sample_bytes(few, "autocast", FULL, loss=PLAIN_LOSS)["activations"] == plan.kept_bytes + plan.largest_bytes - loss


def test_a_loss_in_parts_holds_the_logits_of_a_part_and_a_cut_one_none() -> None:
    s, v = 1024, 50257
    net = Workload.named("gpt2")
    eager, fused, chunked, split, cut = (sample_bytes(net, "autocast", loss=loss)["activations"] for loss in LOSSES.values())
    assert eager - cut == pytest.approx(12 * s * v, rel=1e-3) and fused - cut == pytest.approx(4 * s * v, rel=1e-3)
    assert chunked - cut == pytest.approx(12 / 8 * s * v, rel=1e-3) and split == fused


def test_ordinary_software_has_that_loss_however_it_shares_out() -> None:
    net, on = Workload.named("gpt2"), named_cluster("A100", 4, 1)
    for sharding, differ in (("ddp", True), ("zero3", True), ("distributed_optimizer", False)):
        of = strategy(4, precision="bf16", sharding=sharding)
        ordinary, tuned = (Predictor(framework=level).step(net, on, of).memory for level in ("ordinary", "tuned"))
        assert (ordinary["activations"] > tuned["activations"]) is differ


def test_adam_of_pytorch_holds_the_roots_of_all_moments_during_the_update() -> None:
    net, on = Workload.named("gpt2-xl", 64), named_cluster("A100", 4, 1)
    for choices, shared in (({}, 1), ({"sharding": "zero1"}, 4), ({"sharding": "zero3"}, 4)):
        sizes = Predictor().step(net, on, strategy(4, precision="bf16", optimizer="adam", **choices)).memory
        held = sizes.get("update", 0.0) + sizes["gathered"] + sizes["activations"] + sizes["inputs"]
        assert held == pytest.approx(4 * net.num_parameters / shared)
    for choices in ({"optimizer": "lamb"}, {"optimizer": "adam", "sharding": "distributed_optimizer"}):
        assert "update" not in Predictor().step(net, on, strategy(4, precision="bf16", **choices)).memory
    assert "update" not in Predictor(framework="tuned").step(net, on, strategy(4, precision="bf16", optimizer="adam")).memory


def test_copies_of_embeddings_are_trained_in_their_own_width() -> None:
    plain, whole = (Workload.named("llama-3-8b", 8, lora=f"r=8{more}") for more in ("", ",embeddings=whole"))
    a, b = (
        Predictor().step(net, named_cluster("A100", 1, 1), strategy(1, precision="bf16", optimizer="adam"))
        for net in (plain, whole)
    )
    for name, words in (("weights", 1), ("gradients", 1), ("optimizer state", 2), ("frozen weights", 0)):
        assert b.memory[name] - a.memory[name] == 2 * words * whole.unwidened


def test_between_the_least_and_the_most_it_may_fit() -> None:
    def d(memory: float) -> Device:
        return make_cluster(1, 2, memory=memory).device

    def texts(memory: float) -> list[str]:
        p = predict(make_workload(), make_cluster(1, 2, memory=memory), strategy(2, micro=3, optimizer="adam"))
        return [str(a) for a in p.assumptions if a.kind == "fit"]

    p = predict(make_workload(), make_cluster(1, 2), strategy(2, micro=3, optimizer="adam"))
    least, most = memory_range(p.memory, make_cluster(1, 2).device)
    assert least == p.memory_bytes - p.memory["fragments"] and most == p.memory_bytes + 0.15 * (
        p.memory_bytes - p.memory["context"]
    )
    assert texts(most + 1) == []
    sizes = (most + 1, p.memory_bytes + 1, p.memory_bytes - 1)
    on = [predict(make_workload(), make_cluster(1, 2, memory=size), strategy(2, micro=3, optimizer="adam")) for size in sizes]
    assert (
        [of.fit for of in on] == ["fits", "may not fit", "does not fit"] == [fit_of(p.memory_bytes, d(size)) for size in sizes]
    )
    assert [of.fits for of in on] == [True, True, False] and on[1].headline.startswith("MAY NOT FIT")
    assert usable_bytes(d(most)) == pytest.approx(p.memory_bytes)
    (close,) = texts(p.memory_bytes + 1)
    assert close.startswith("May not fit: ")
    missing, perhaps = texts(p.memory_bytes - 1)
    assert missing.startswith("Does not fit: ") and perhaps.startswith("May fit: ")
    assert len(texts(0.8 * least)) == 1


@pytest.mark.skipif(not MEASURED.is_dir(), reason="needs the published measurements: PACELINE_SHARED names them")
@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_every_published_run_of_mpt_fits(every: int) -> None:
    rows = [llmfoundry.case(row) for row in read(MEASURED / "llmfoundry_mpt_fsdp.csv", llmfoundry.TEXTS + llmfoundry.NUMBERS)]
    cases = [case for case in rows if isinstance(case, Case)]
    some = cases[::every]
    on = [(case.workload, case.setting.cluster, case.setting.strategy) for case in some]
    tuned = Predictor(framework="tuned")  # with a fused loss (llm-foundry, ``loss_fn: fused_crossentropy``)
    assert len(cases) > 300 and [case.keys for case, of in zip(some, on, strict=True) if not tuned.step(*of).fits] == []


PEAKS = [
    # context, tensor, pipeline, batch, tokens, GiB allocated
    (1, 1, 2, 16, 4096, 66.55),
    (1, 2, 1, 16, 4096, 60.68),
    (1, 8, 1, 4, 4096, 28.29),
    (4, 2, 1, 4, 131072, 112.67),
    (8, 1, 1, 4, 32768, 104.51),
]
"""Llama 3 70B of 12 layers in Megatron-LM on 8 B200, bf16, ZeRO-1, nothing recomputed. MooreThreads/SimuMax @4dcaae513ba7,
docs/b200/b200_release_v1.2_summary.json; SimuMax itself is 0.2 % off in the mean."""


@pytest.mark.parametrize(("context", "tensor", "pipeline", "batch", "tokens", "published"), PEAKS)
def test_megatron_allocates_as_much_as_measured(
    context: int, tensor: int, pipeline: int, batch: int, tokens: int, published: float
) -> None:
    network = Workload.from_shape(llama(12, 8192, 64, 8, 28672, 128256), tokens, name="llama-3-70b-of-12-layers")
    mesh = {"context": context, "tensor": tensor, "pipeline": pipeline, "sequence": tensor > 1, "sharding": "zero1"}
    replicas = 8 // (context * tensor * pipeline)
    chosen = Strategy.of(
        world_size=8,
        global_batch_size=batch,
        micro_batches=batch // replicas,
        precision="bf16",
        optimizer="adam",
        gather_bits=16,
        **mesh,
    )
    step = Predictor().step(network, named_cluster("B200", 8, 1), chosen)
    assert step.allocated_bytes / 2**30 == pytest.approx(published, rel=0.01)


def test_one_unused_gradient_for_each_shape_and_one_for_the_vocabulary() -> None:
    block, vocabulary = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96, 1000 * 64
    network = Workload.from_shape(llama(3, 64, 4, 2, 96, 1000), 8)
    assert unused_gradients(network) == block + vocabulary
    tied = Workload.from_shape(replace(llama(3, 64, 4, 2, 96, 1000), tied=True), 8)
    assert unused_gradients(tied) == block + vocabulary
