"""Shares of a tensor-parallel group: what is divided, what is repeated, and the bytes of Megatron's collectives."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.errors import UserError
from paceline.prediction.mesh.tensor_parallel import Collective, share
from paceline.prediction.passes.layer_roles import style
from paceline.workload import LatentAttention, TransformerShape

SHAPE = TransformerShape(layers=3, hidden=96, heads=12, vocabulary=960, dropout=False)
S, H = 20, 96


def _once_more(c: Collective) -> bool:
    """Whether it gathers an input for the weight's gradient, which was gathered before."""
    return c.beside > 0 and c.kind == "gather"


def gpt(**changes: object) -> Workload:
    shape = TransformerShape(**{**{name: getattr(SHAPE, name) for name in SHAPE.__slots__}, **changes})  # type: ignore[arg-type]
    return Workload.from_shape(shape, S)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("tensor", [2, 3, 4])
def test_products_are_divided_and_none_is_lost(tensor: int, sequence: bool) -> None:
    whole, own = gpt(), share(gpt(), tensor, sequence).workload
    assert own.flops_per_sample == pytest.approx(whole.flops_per_sample / tensor)
    for before, after in zip(whole.layers, own.layers, strict=True):
        for o, p in zip(before.operations, after.operations, strict=True):
            if o.kind == "matmul":
                assert 2 * p.m * p.n * p.k * p.batch * p.calls == pytest.approx(p.flops)
                assert p.bytes + p.fixed_bytes < o.bytes + o.fixed_bytes


def test_a_divided_linear_layer_moves_the_bytes_of_its_true_shape() -> None:
    own = {layer.name: layer for layer in share(gpt(), 4, False).workload.layers}
    forward, by_input, by_weight = own["blocks.0.expand"].operations[:3]
    part = 4 * H // 4
    assert (forward.m, forward.n, forward.k) == (S, part, H)
    assert forward.bytes == 4 * (S * H + S * part) and forward.fixed_bytes == pytest.approx(4 * (H * part + part), rel=0.02)
    assert (by_input.m, by_input.n, by_input.k) == (S, H, part)
    assert (by_weight.m, by_weight.n, by_weight.k) == (part, H, S)
    assert by_weight.fixed_bytes == 4 * H * part


@pytest.mark.parametrize("tensor", [2, 4])
def test_parameters_are_divided_but_for_norms_and_biases_of_rows(tensor: int) -> None:
    whole, own = gpt(), share(gpt(), tensor, False).workload
    for before, after in zip(whole.parameters, own.parameters, strict=True):
        how = style(whole.layers[before.layer])
        repeated = how == "tokens" or (how == "rows" and before.name.endswith("bias"))
        assert after.size == (before.size if repeated else before.size // tensor)


def test_the_collectives_are_megatrons() -> None:
    # Shoeybi et al. 2019, section 3: two all-reduces of the activations in each pass of a block
    collectives = share(gpt(), 4, False).collectives
    whole = 4 * S * H
    names = [layer.name for layer in gpt().layers]
    for backward in (False, True):
        own = [c for c in collectives if names[c.layer].startswith("blocks.1.") and c.backward == backward]
        assert [(c.kind, c.bytes) for c in own] == [("allreduce", whole)] * 2
    ends = [c for c in collectives if not names[c.layer].startswith("blocks.")]
    assert [(c.kind, c.bytes) for c in ends if not c.wide] == [("allreduce", whole)] * 2  # embedding, logits' input
    assert [c.bytes for c in ends if c.wide] == [4 * S] * 3


def test_sequence_parallelism_halves_each_all_reduce_and_divides_what_lies_between() -> None:
    # Korthikanti et al. 2022, section 4.2.2: an all-reduce is a reduce-scatter and an all-gather
    plain, sequence = share(gpt(), 4, False), share(gpt(), 4, True)
    moved = [
        sum(c.bytes * (2 if c.kind == "allreduce" else 1) for c in x.collectives if not c.wide and not _once_more(c))
        for x in (plain, sequence)
    ]
    assert moved[1] == pytest.approx(moved[0])
    norm = next(i for i, layer in enumerate(gpt().layers) if layer.name == "blocks.0.attention_norm")
    before, after = plain.workload.layers[norm], sequence.workload.layers[norm]
    assert after.activation_bytes == before.activation_bytes / 4 == gpt().layers[norm].activation_bytes / 4
    kept = [x.workload.activation_bytes for x in (plain, sequence)]
    assert kept[1] == pytest.approx(gpt().activation_bytes / 4, rel=0.02) and kept[0] > kept[1]


def test_a_share_is_made_once() -> None:
    workload = gpt()
    assert share(workload, 2, False) is share(workload, 2, False) is not share(workload, 2, True)


def test_heads_that_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"the 12 heads of blocks.0.attention.*do not divide among 5 devices"):
        share(gpt(), 5, False)


def test_a_network_without_known_names_is_refused() -> None:
    with pytest.raises(UserError, match=r"tensor parallelism of 2: no layer of resnet-50 has a name"):
        share(Workload.named("resnet-50"), 2, False)


def test_latent_attention_gathers_both_vectors() -> None:
    latent = LatentAttention(q_rank=48, kv_rank=32, nope=16, rope=8, value=16)
    own = share(gpt(latent=latent, layers=1), 4, True)
    gathered = [c.bytes for c in own.collectives if c.kind == "gather" and not c.backward]
    assert gathered == [4 * S * 48, 4 * S * 32, 4 * S * H, 4 * S * H]  # queries, keys and values; the inner width; the logits
    names = {layer.name: layer for layer in own.workload.layers}
    assert names["blocks.0.attention.query"].operations[0].n == 12 * 24 / 4
    assert names["blocks.0.attention.query_down"].operations[0].m == S / 4
    assert names["blocks.0.attention.mix"].operations[0].batch == 3


@pytest.mark.parametrize("sequence", [False, True])
def test_adapters_exchange_what_megatrons_do(sequence: bool) -> None:
    base, rank, blocks = gpt(), 4, SHAPE.layers
    adapted = base.with_lora(f"r={rank},targets=qkv+project")
    before, after = (share(net, 2, sequence).collectives for net in (base, adapted))
    added = [c for c in after if c.separate]
    assert [c for c in after if c.layer and not c.separate] == [c for c in before if c.layer]  # as next to trained weights
    assert len({c.layer for c in added}) == 2 * blocks
    inner, whole = 4 * S * rank, 4 * S * H

    def sizes(kind: str, backward: bool) -> list[float]:
        return sorted(c.bytes for c in added if c.kind == kind and c.backward is backward)

    assert sizes("gather", False) == [inner] * blocks + [whole] * blocks  # of the first matrix, and of the result by rows
    assert sizes("allreduce", False) == [inner] * blocks
    if sequence:
        assert sizes("allreduce", True) == [inner] * blocks and sizes("scatter", True) == [whole] * blocks
        assert sizes("gather", True) == [whole] * blocks
    else:
        assert sizes("allreduce", True) == [inner] * blocks + [whole] * blocks and not sizes("scatter", True)


def test_adapters_of_one_input_add_up_its_gradient_once() -> None:
    net = Workload.named("llama-3-8b", 64)
    one, three = (
        [c for c in share(net.with_lora(f"r=4,targets={names}"), 2, True).collectives if c.separate and c.kind == "scatter"]
        for names in ("q_proj", "q_proj+k_proj+v_proj")
    )
    assert len(one) == len(three) == 32


def test_adapters_keep_their_input_gathered() -> None:
    base = gpt()
    whole, own = base.with_lora("r=4,targets=qkv"), share(base.with_lora("r=4,targets=qkv"), 2, True).workload
    kept = {layer.name: layer.activation_bytes for layer in whole.layers}
    assert all(layer.activation_bytes == kept[layer.name] for layer in own.layers if layer.name.endswith("qkv"))


def test_each_device_unpacks_its_part_of_the_weights() -> None:
    net = Workload.named("llama-3-8b", 16, lora="qlora")

    def unpacked(table: Workload) -> float:
        return sum(o.fixed_bytes for x in table.layers for o in x.operations if o.kind == "memory" and not o.bytes)

    assert unpacked(share(net, 2, True).workload) == pytest.approx(unpacked(net) / 2)
    assert share(net, 2, True).workload.unpacked == net.unpacked / 2
