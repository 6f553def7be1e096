"""Tables from dimensions: equal to those of the modules, and to what was published about the networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.models.sequences.bert import Bert
from paceline.models.sequences.gpt2 import Gpt2
from paceline.workload import TransformerShape, Workload
from paceline.workload.builders.shapes import SHAPES
from traced_layers import work

FIELDS = ("flops", "bytes", "fixed_bytes", "calls")


def totals(table: Workload) -> dict[str, float]:
    keys = [f"{field}_{way}" for field in FIELDS for way in ("forward", "backward")]
    kept = ("activation_bytes", "activation_bytes_half")
    return {key: sum(work(layer, key) for layer in table.layers) for key in (*keys, *kept)}


@pytest.mark.parametrize("name", ["gpt2", "bert-base", "bert-large"])
def test_dimensions_give_the_table_of_the_module(name: str) -> None:
    """FLOPs, gradients and their order exactly; bytes, activations and kernels within 1.2 %: arange, masks, seeds."""
    table, module = SHAPES[name].table(name, None, True), Workload.named(name)
    mine, its = totals(table), totals(module)
    assert (mine["flops_forward"], mine["flops_backward"]) == (its["flops_forward"], its["flops_backward"])
    assert mine == pytest.approx(its, rel=0.012)
    assert [p.shape for p in table.ready_order] == [p.shape for p in module.ready_order]
    shapes = [
        sorted(
            (o.kind, o.backward, o.m, o.n, o.k, o.batch, o.grows, o.flops, o.calls)
            for layer in t.layers
            for o in layer.operations
            if o.kind != "memory"
        )
        for t in (table, module)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.long
@settings(max_examples=settings.default.max_examples // 10)
@given(st.integers(1, 3), st.sampled_from([1, 2, 4]), st.sampled_from([8, 24]), st.sampled_from([4, 7, 64]), st.booleans())
def test_any_dimensions_give_the_flops_of_the_module(layers: int, heads: int, head: int, length: int, decoder: bool) -> None:
    width = heads * head
    build = Gpt2 if decoder else Bert
    module = Workload.trace(
        lambda: build(layers, width, heads), torch.zeros((1, length), dtype=torch.int64), loss="cross_entropy"
    )
    rest = (
        {"vocabulary": 50257, "context": 1024}
        if decoder
        else {"vocabulary": 30522, "context": 512, "segments": 2, "post_norm": True, "fused_qkv": False, "head": "dense"}
    )
    table = Workload.from_shape(TransformerShape(layers=layers, hidden=width, heads=heads, **rest), length)  # type: ignore[arg-type]
    mine, its = totals(table), totals(module)
    assert (mine["flops_forward"], mine["flops_backward"]) == (its["flops_forward"], its["flops_backward"])
    assert mine["bytes_backward"] == pytest.approx(its["bytes_backward"], rel=0.012)
    assert table.num_parameters == module.num_parameters


class Eager(nn.Module):
    """Attention with the scores written, shared heads, rotation left out; then a gated feed-forward network."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.expand = nn.Linear(width, ffn, bias=False), nn.Linear(width, ffn, bias=False)
        self.contract, self.drop = nn.Linear(ffn, width, bias=False), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.transpose(-1, -2)) / 4.0
        length = x.shape[1]
        scores = torch.where(torch.ones(length, length, dtype=torch.bool).tril(), scores, -1e9)
        mixed = (self.drop(scores.softmax(-1)) @ v).transpose(1, 2).flatten(-2)
        x = x + self.drop(self.project(mixed))
        y = self.mlp_norm(x)
        return x + self.drop(self.contract(nn.functional.silu(self.expand(y)) * self.gate(y)))


def test_written_scores_and_gates_are_those_of_the_module() -> None:
    width, heads, ffn, length = 64, 4, 160, 128
    module = Workload.trace(lambda: nn.Sequential(nn.LayerNorm(width), Eager(width, heads, ffn)), torch.empty(1, length, width))
    shape = TransformerShape(
        layers=1, hidden=width, heads=heads, ffn=ffn, vocabulary=10, gated=True, bias=False, fused_qkv=False
    )
    table = Workload.from_shape(shape, length, fused_attention=False)
    block = [layer for layer in table.layers if layer.name.startswith("blocks.0.")]
    its = [layer for layer in module.layers if layer.name.startswith("1")]
    for key in ("flops_forward", "flops_backward"):
        assert sum(work(layer, key) for layer in block) == sum(work(layer, key) for layer in its)
    # The module copies heads into place and turns its mask; a table leaves out what another eager form would not do.
    for key in ("bytes_forward", "bytes_backward", "activation_bytes", "activation_bytes_half"):
        mine, theirs = (sum(work(layer, key) for layer in layers) for layers in (block, its))
        assert mine == pytest.approx(theirs, rel=0.1), key
    fused = Workload.from_shape(shape, length)
    assert fused.activation_bytes < table.activation_bytes
    assert totals(fused)["bytes_backward"] < totals(table)["bytes_backward"]


def test_values_keep_the_fused_product_that_rotation_leaves_behind() -> None:
    """PyTorch counts storage: the three parts are views of one tensor, and rotation writes queries and keys again."""
    whole = torch.empty(5, 3 * 8)
    query, key, value = whole.split(8, dim=1)
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in (query * 1, key * 1, value)}
    assert sum(held.values()) == 4 * 5 * 8 * 5  # two rotated ones, and three in the storage of the values
    fused, apart = (
        Workload.from_shape(
            TransformerShape(layers=1, hidden=8, heads=2, vocabulary=10, positions="rotary", fused_qkv=on, dropout=False), 5
        )
        for on in (True, False)
    )
    assert fused.activation_bytes - apart.activation_bytes == 4 * 5 * 8 * 2
    assert fused.kept_bytes("fused") == apart.kept_bytes("fused")


def test_flops_of_gpt3_are_those_of_its_paper() -> None:
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300e9 tokens, six for each parameter and token; attention left out."""
    table = Workload.named("gpt3-175b")
    linear = sum(o.flops for layer in table.layers for o in layer.operations if o.kind == "matmul")
    assert linear / 2048 * 300e9 == pytest.approx(3.14e23, rel=0.01)


@pytest.mark.parametrize("name", ["gpt2-xl", "gpt3-175b"])
def test_flops_are_those_of_the_formula(name: str) -> None:
    """Narayanan et al. 2021, section 3: 72 B s l h^2 (1 + s / 6h + V / 12lh), less what a recomputation would add."""
    shape, s = SHAPES[name].shape, SHAPES[name].seq_len
    layers, h, v = shape.layers, shape.hidden, shape.vocabulary
    formula = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    again = layers * 2 * s**2 * h  # fused attention computes the scores once more
    assert Workload.named(name).flops_per_sample == pytest.approx(formula + again, rel=1e-9)


def test_attention_grows_with_the_square_of_the_length() -> None:
    def attention(length: int) -> float:
        table = Workload.named("llama-3-8b", length)
        return sum(o.flops for layer in table.layers for o in layer.operations if o.kind == "attention")

    assert attention(4096) == 4 * attention(2048) > 0


@pytest.mark.parametrize("wrong", [{"heads": 7}, {"kv_heads": 5}, {"layers": 0}, {"vocabulary": -1}])
def test_dimensions_that_cannot_be_are_errors(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="no transformer has"):
        TransformerShape(**{"layers": 2, "hidden": 64, "heads": 8, "vocabulary": 100, **wrong})  # type: ignore[arg-type]
