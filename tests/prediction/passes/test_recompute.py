"""Recomputation against Korthikanti et al. 2022, arXiv:2205.05198: bytes of each block, in table 2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import Cluster, Strategy, Workload
from paceline.errors import UserError
from paceline.prediction import Prediction, Predictor
from paceline.prediction.mesh.tensor_parallel import share
from paceline.prediction.passes.recompute import recomputed, saved_bytes
from paceline.prediction.step.memory import sample_bytes
from paceline.strategy.recompute import FULL_RECOMPUTE as FULL
from paceline.strategy.recompute import NO_RECOMPUTE as NOTHING
from paceline.strategy.recompute import Recompute
from paceline.workload import TransformerShape
from prediction_toys import make_workload

SELECTIVE = Recompute.of("selective")
S, H, A = 512, 1024, 16


def gpt(layers: int = 8, fused: bool = False, **dimensions: object) -> Workload:
    shape = TransformerShape(layers=layers, hidden=H, heads=A, vocabulary=512, **dimensions)  # type: ignore[arg-type]
    return Workload.from_shape(shape, S, name=f"gpt-{layers}x{H}", fused_attention=fused)


def of_block(choice: Recompute, tensor: int = 1, sequence: bool = False) -> float:
    """Bytes that one more block keeps of one sample in 16 bits."""
    sizes = []
    for layers in (4, 8):
        net = gpt(layers)
        own = share(net, tensor, sequence).workload if tensor > 1 else net
        sizes.append(sample_bytes(own, "narrow", choice)["activations"])
    return (sizes[1] - sizes[0]) / 4


def test_blocks_are_known_by_their_names() -> None:
    plan = recomputed(make_workload(layers=6, blocks=2), FULL)
    assert plan.names == ((1, "b.0"), (3, "b.1"), (5, "b.2")) and plan.before.tolist() == [1, 1, 3, 3, 5, 5]
    assert plan.again.tolist() == [1, 0, 1, 0, 1, 0], "what is behind the last kept input is not run again"
    assert (plan.kept_bytes, plan.largest_bytes) == (3 * 4000, 2 * 4000), "the input of each, and one block whole"
    plain = recomputed(make_workload(layers=3), FULL)
    assert plain.names == () and plain.kept_bytes == 3 * 4000 and not plain.again.any()


@pytest.mark.parametrize(("tensor", "sequence"), [(1, False), (2, False), (8, False), (2, True), (8, True)])
def test_a_block_keeps_the_bytes_of_table_2(tensor: int, sequence: bool) -> None:
    sbh, scores, t = S * H, 5 * A * S * S, tensor
    whole = 34 * sbh / t if sequence else sbh * (10 + 24 / t)
    inputs = 2 * sbh / (t if sequence else 1)
    close = pytest.approx  # what the paper leaves out: the statistics of two norms, 16 bytes a token
    assert of_block(NOTHING, tensor, sequence) == close(whole + scores / t, rel=2e-3)
    assert of_block(SELECTIVE, tensor, sequence) == close(whole, rel=2e-3)
    assert of_block(FULL, tensor, sequence) == close(inputs, rel=5e-3)


def test_a_block_at_fp32_and_under_autocast_drops_its_scores_alone() -> None:
    net, scores = gpt(), A * S * S
    for numbers, each in (("fp32", 9), ("autocast", 7), ("narrow", 5)):
        before, after = (sample_bytes(net, numbers, x)["activations"] for x in (NOTHING, SELECTIVE))  # type: ignore[arg-type]
        assert before - after == pytest.approx(7 * each * scores)  # of eight blocks, one is recomputed at a time
    undropped = gpt(dropout=False)
    assert saved_bytes(undropped, SELECTIVE, "narrow") == pytest.approx(7 * 4 * scores)


def test_fused_attention_leaves_nothing_to_recompute() -> None:
    net = gpt(fused=True)
    assert saved_bytes(net, SELECTIVE) == 0 and not recomputed(net, SELECTIVE).again.any()
    plain, again = (step(net, recompute=x) for x in ("none", "selective"))
    assert again.step_time_s == plain.step_time_s
    assert any("Selective recomputation changes nothing: a fused kernel" in line for line in again.assumptions)


def test_named_parts_keep_their_inputs_alone() -> None:
    sbh, scores = S * H, 5 * A * S * S
    mlp = Recompute.of("selective:mlp")
    assert of_block(mlp) == pytest.approx(34 * sbh + scores - 16 * sbh, rel=2e-3)  # GELU's input and its result
    norms = Recompute.of("selective:layernorm")
    assert of_block(norms) == pytest.approx(34 * sbh + scores - 4 * sbh, rel=2e-3)  # what both norms write
    all_three = Recompute.of("selective:core_attn,mlp,layernorm")
    assert of_block(all_three) == pytest.approx((34 - 16 - 4) * sbh, rel=2e-3)


def test_by_operation_every_second_product_and_no_attention_runs_again() -> None:
    net = Workload.named("llama-3-8b", 4096)
    names = [layer.name for layer in net.layers]
    plan = recomputed(net, Recompute.of("selective:op"), "narrow")
    first = {name.removeprefix("blocks.0."): bool(plan.again[i]) for i, name in enumerate(names) if "blocks.0." in name}
    products = ["attention.query", "attention.key", "attention.value", "attention.project", "expand", "gate", "contract"]
    # torchtitan counts the products of a block and keeps the first, third, ... The last one's result is not needed.
    assert [first[name] for name in products] == [False, True, False, True, False, True, False]
    assert not first["attention.mix"] and first["attention_norm"] and first["act"] and first["multiply"]
    s, h, kv, ffn = 4096, 4096, 1024, 14336
    kept = 2 * s * (h + h + kv + ffn + h) + 2 * s * h + 4 * s * 32  # input, four products, attention with its sums
    whole, smaller = (recomputed(Workload.named("llama-3-8b", s), x, "narrow") for x in (FULL, Recompute.of("selective:op")))
    outside = whole.kept_bytes - 32 * (2 * s * h + 4 * s)
    assert smaller.kept_bytes - outside == pytest.approx(32 * kept, rel=1e-3)
    assert whole.kept_bytes < smaller.kept_bytes < net.kept_bytes("narrow")


def step(net: Workload, cluster: str = "1 A100", **choices: object) -> Prediction:
    on = Cluster.named(cluster)
    whole = {"world_size": on.world_size, "global_batch_size": on.world_size * 8, "precision": "bf16", **choices}
    return Predictor().step(net, on, Strategy.of(**whole))


def test_full_recomputation_costs_a_forward_pass_and_selective_that_of_attention() -> None:
    net = gpt()
    plain, selective, full = (step(net, recompute=x) for x in ("none", "selective", "full"))
    forward, _ = Predictor().model(net).passes(Cluster.named("1 A100").device, plain_strategy())
    names = [layer.name for layer in net.layers]
    attention = sum(s for s, name in zip(forward.total.tolist(), names, strict=True) if name.endswith("attention.mix"))
    blocks = sum(s for s, name in zip(forward.total.tolist(), names, strict=True) if name.startswith("blocks."))
    assert selective.step_time_s - plain.step_time_s == pytest.approx(attention)
    assert 0.9 * blocks < full.step_time_s - plain.step_time_s <= blocks
    again = [event.name for event in selective.timeline if event.name.startswith("recompute")]
    assert again == [f"recompute blocks.{i}.attention.mix" for i in reversed(range(8))]


def plain_strategy() -> Strategy:
    return Strategy.of(world_size=1, global_batch_size=8, precision="bf16")


choices = st.sampled_from(["selective", "selective:mlp", "selective:mlp,layernorm", "selective:op", "full"])


@settings(max_examples=settings.default.max_examples // 2)
@given(choices, st.sampled_from(["ddp", "zero3"]), st.sampled_from([1, 2]), st.booleans())
def test_recomputation_never_needs_more_memory_nor_less_time(again: str, sharding: str, tensor: int, fused: bool) -> None:
    net = gpt(fused=fused)
    plain, other = (step(net, "4 A100", recompute=x, sharding=sharding, tensor=tensor) for x in ("none", again))
    assert other.memory_bytes <= plain.memory_bytes * (1 + 1e-9) and other.step_time_s >= plain.step_time_s * (1 - 1e-9)
    assert sum(other.exposed.values()) == pytest.approx(other.step_time_s, rel=1e-6)
    full = step(net, "4 A100", recompute="full", sharding=sharding, tensor=tensor)
    assert full.memory_bytes <= other.memory_bytes * (1 + 1e-9)


def test_more_layers_that_recompute_need_less_memory_and_more_time() -> None:
    net, runs = gpt(), []
    for layers in (1, 2, 4, 8):
        runs.append(step(net, recompute="full", recompute_layers=layers))
    memory, seconds = [p.memory_bytes for p in runs], [p.step_time_s for p in runs]
    assert memory == sorted(memory, reverse=True) and seconds == sorted(seconds)
    assert memory[1] - memory[2] == pytest.approx((memory[2] - memory[3]) / 2)
    assert runs[-1].step_time_s == step(net, recompute="full").step_time_s == step(net, recompute=True).step_time_s
    spread = recomputed(net, Recompute.of("full", 2))
    assert [name for _, name in spread.names] == ["blocks.3", "blocks.7"], "at equal distances"


def test_layers_are_those_of_each_part_of_a_pipeline() -> None:
    net, where = gpt(), {"pipeline": 2, "virtual_stages": 2, "grad_accum_steps": 4, "global_batch_size": 16}
    some, all_of_it = (step(net, "2 A100", recompute="full", recompute_layers=n, **where) for n in (1, 2))
    assert all_of_it.memory_bytes == step(net, "2 A100", recompute="full", **where).memory_bytes
    assert some.memory_bytes > all_of_it.memory_bytes and some.step_time_s < all_of_it.step_time_s


@pytest.mark.parametrize(
    ("where", "layers", "words"),
    [
        ({}, 9, "9 layers to recompute: .* has 8 blocks; give at most 8"),
        ({"pipeline": 2, "grad_accum_steps": 4}, 5, "a part of the pipeline of .* has 4 blocks; give at most 4"),
        ({"pipeline": 2, "grad_accum_steps": 4, "virtual_stages": 2}, 3, "has 2 blocks"),
        ({"pipeline": 2, "grad_accum_steps": 4, "first_stage_layers": 6}, 7, "has 6 blocks"),
    ],
)
def test_more_layers_to_recompute_than_there_are_blocks_are_refused(where: dict[str, int], layers: int, words: str) -> None:
    choices = {"recompute": "full", "global_batch_size": 16, **where}
    with pytest.raises(UserError, match=words):
        step(gpt(), "2 A100", recompute_layers=layers, **choices)
    strategy = Strategy.of(world_size=2, precision="bf16", recompute_layers=layers, **choices)
    with pytest.raises(UserError, match=words):
        Predictor().many(gpt(), [(Cluster.named("2 A100"), strategy)])
    assert step(gpt(), "2 A100", recompute_layers=layers - 1, **choices).step_time_s > 0


def test_many_at_once_have_the_numbers_of_each() -> None:
    net, on = gpt(), Cluster.named("4 A100")
    each = [
        Strategy.of(world_size=4, global_batch_size=32, precision="bf16", recompute=again, recompute_layers=layers)
        for again in ("selective", "selective:mlp", "selective:op", "full")
        for layers in (0, 3)
    ]
    table = Predictor().many(net, [(on, strategy) for strategy in each])
    for strategy, seconds, needed in zip(each, table.step_s, table.memory_bytes, strict=True):
        p = Predictor().step(net, on, strategy)
        assert (seconds, needed) == pytest.approx((p.step_time_s, p.memory_bytes))


def kept_by_block(name: str, choice: str) -> float:
    """Bytes that one sample keeps of block 5 in 16 bits."""
    net = Workload.named(name)
    plans = [recomputed(net, Recompute.of(x), "narrow").kept_bytes for x in ("none", choice)]
    blocks = sum(".attention.mix" in layer.name for layer in net.layers)
    return (plans[0] - plans[1]) / blocks


def test_parts_of_a_mixture_of_experts() -> None:
    # Mixtral 8x7B: 4096 tokens go to 2 of 8 experts each, 4096 wide, 14336 inside; a router reads what the norm gives
    s, h, f = 4096, 4096, 14336
    copies = 2 * s
    assert kept_by_block("mixtral-8x7b", "selective:moe_act") == pytest.approx(2 * 2 * copies * f)  # both inputs of products
    whole = 2 * copies * (h + 4 * f)  # what experts keep: their input, both factors, the activation's input, the product
    assert kept_by_block("mixtral-8x7b", "selective:moe") == pytest.approx(whole, rel=2e-3)
    assert kept_by_block("mixtral-8x7b", "selective:mlp") == 0, "a block with experts has no other feed-forward network"
    net = Workload.named("mixtral-8x7b")
    again = recomputed(net, Recompute.of("selective:moe")).again
    names = {layer.name.removeprefix("blocks.5."): bool(again[i]) for i, layer in enumerate(net.layers)}
    assert names["router"] and names["dispatch"] and names["experts.expand"] and not names["attention.query"]


def test_parts_of_deepseek() -> None:
    # V3: 4096 tokens, 7168 wide; 128 heads whose keys have 192 numbers and whose values have 128; 58 of 61 blocks have experts
    s, heads = 4096, 128
    latent = kept_by_block("deepseek-v3", "selective:mla_up_proj")
    assert latent == pytest.approx(2 * s * heads * (192 + 192 + 128), rel=2e-3)
    shared = kept_by_block("deepseek-v3", "selective:shared_experts")
    assert shared == pytest.approx(58 / 61 * 2 * s * 2048 * 4, rel=1e-3)
    dense = kept_by_block("deepseek-v3", "selective:mlp")
    assert dense == pytest.approx(3 / 61 * 2 * s * 18432 * 4, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("again", ["selective:moe", "selective:moe_act", "selective:mla_up_proj,moe_act,layernorm", "full"])
def test_experts_recompute_in_every_precision(again: str, precision: str) -> None:
    net = Workload.named("deepseek-v2-lite")
    runs = [step(net, "8 H100", recompute=x, precision=precision, global_batch_size=8) for x in ("none", again)]
    kept = [run.memory["activations"] for run in runs]
    assert kept[1] < kept[0] and runs[1].step_time_s > runs[0].step_time_s


@pytest.mark.parametrize(
    ("name", "part", "instead"),
    [
        ("mixtral-8x7b", "mla_up_proj", "selective:layernorm or selective:moe or selective:moe_act or selective:op"),
        ("mixtral-8x7b", "layernorm,shared_experts", "selective:layernorm or selective:moe or"),
        ("llama-3-8b", "moe", "selective:mlp or selective:layernorm or selective:op"),
        ("resnet-50", "mlp", "leave recompute out: it has no blocks"),
    ],
)
def test_a_part_that_the_network_lacks_is_refused_with_those_that_it_has(name: str, part: str, instead: str) -> None:
    lacked = part.rpartition(",")[2]
    with pytest.raises(UserError, match=f"{name} has no {lacked} to recompute in its blocks; .*{instead}"):
        step(Workload.named(name), "8 H100", recompute=f"selective:{part}", precision="bf16", global_batch_size=8)
