"""Mixtures of experts: FLOPs by closed forms, and a module's products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paceline.errors import UserError
from paceline.workload import Experts, TransformerShape, Workload

SHAPE = TransformerShape(
    layers=2,
    hidden=64,
    heads=4,
    vocabulary=100,
    ffn=160,
    gated=True,
    norm="rms",
    bias=False,
    tied=False,
    positions="rotary",
    dropout=False,
)
experts = st.builds(
    lambda count, active, ffn, shared: Experts(count=count, active=min(active, count), ffn=ffn, shared=shared),
    st.integers(1, 16),
    st.integers(1, 16),
    st.integers(1, 64),
    st.sampled_from([0, 32]),
)


def products(table: Workload, backward: bool) -> float:
    return sum(o.flops for layer in table.layers for o in layer.operations if o.kind == "matmul" and o.backward == backward)


@settings(max_examples=30)
@given(experts, st.integers(1, 200), st.booleans())
def test_flops_are_those_of_the_experts_that_a_token_meets(e: Experts, s: int, gated: bool) -> None:
    shape = replace(SHAPE, experts=e, gated=gated)
    table = Workload.from_shape(shape, s)
    h, wide = shape.hidden, e.active * e.ffn + e.shared
    block = 4 * h * h + (2 + gated) * h * wide + h * e.count
    assert products(table, False) == pytest.approx(2 * s * (shape.layers * block + h * shape.vocabulary))
    assert products(table, True) == pytest.approx(2 * products(table, False))
    for layer in table.layers:
        for o in layer.operations:
            assert o.kind != "matmul" or o.flops == pytest.approx(2 * o.m * o.n * o.k * o.batch * o.calls)
    assert Workload.from_json(table.to_json()) == table


@pytest.mark.parametrize("gated", [False, True])
def test_one_expert_of_all_tokens_is_a_feed_forward_network(gated: bool) -> None:
    dense = Workload.from_shape(replace(SHAPE, gated=gated), 32)
    single = Workload.from_shape(replace(SHAPE, gated=gated, experts=Experts(count=1, active=1, ffn=160)), 32)
    beside = {"router", "route", "dispatch", "combine"}
    own = [layer for layer in single.layers if layer.name.rpartition(".")[2] not in beside]
    assert len(own) == len(dense.layers)
    for mine, its in zip(own, dense.layers, strict=True):
        assert mine.operations == its.operations and mine.kind == its.kind
    assert single.num_parameters == dense.num_parameters + 2 * 64  # and the routers


class Routed(nn.Module):
    """Every expert on its tokens, one after the other, as frameworks without a grouped product do."""

    def __init__(self, width: int, ffn: int, count: int, active: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, ffn, bias=False), nn.GELU(), nn.Linear(ffn, width, bias=False)) for _ in range(count)
        )
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x).softmax(-1).topk(self.active).values
        rows = x.repeat_interleave(self.active, 1).chunk(len(self.experts), 1)
        out = torch.cat([expert(own) for expert, own in zip(self.experts, rows, strict=True)], 1)
        return (out.unflatten(1, (-1, self.active)) * scores.unsqueeze(-1)).sum(2)


def test_products_and_parameters_are_those_of_a_module() -> None:
    width, ffn, count, chosen, length = 64, 96, 4, 2, 48
    module = Workload.trace(
        lambda: nn.Sequential(nn.LayerNorm(width), Routed(width, ffn, count, chosen)), torch.empty(1, length, width)
    )
    shape = replace(SHAPE, layers=1, gated=False, experts=Experts(count=count, active=chosen, ffn=ffn))
    table = Workload.from_shape(shape, length)
    own = [layer for layer in table.layers if layer.name.startswith(("blocks.0.experts", "blocks.0.router"))]
    for backward in (False, True):
        mine = sum(o.flops for x in own for o in x.operations if o.kind == "matmul" and o.backward == backward)
        assert mine == products(module, backward)
    sizes = sum(p.size for p in table.parameters if "experts" in p.name or "router" in p.name)
    assert sizes + 2 * width == module.num_parameters


def test_blocks_without_experts_are_where_the_shape_says() -> None:
    mixed = Experts(count=4, active=1, ffn=32, first=1, every=2)
    table = Workload.from_shape(replace(SHAPE, layers=6, experts=mixed), 16)
    assert {layer.name.split(".")[1] for layer in table.layers if ".experts." in layer.name} == {"1", "3", "5"}
    assert {layer.name.split(".")[1] for layer in table.layers if layer.name.endswith("s.0.expand")} == {"0"}


def test_heads_have_a_width_of_their_own() -> None:
    table = Workload.from_shape(replace(SHAPE, head_dim=32, kv_heads=2, head_norm=True), 16)
    sizes = {p.name: p.shape for p in table.parameters}
    assert sizes["blocks.0.attention.qkv.weight"] == (4 * 32 + 2 * 2 * 32, 64)
    assert sizes["blocks.0.attention.project.weight"] == (64, 128)
    assert sizes["blocks.1.attention.key_norm.weight"] == (32,)
    usual = replace(SHAPE, head_dim=16)
    assert Workload.from_shape(usual, 16, name="a") == Workload.from_shape(SHAPE, 16, name="a")


@pytest.mark.parametrize("wrong", [{"count": 0}, {"active": 9}, {"ffn": 0}, {"shared": -1}, {"every": 0}])
def test_experts_that_cannot_be_are_errors(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"no block has .* experts"):
        Experts(**{"count": 8, "active": 2, "ffn": 16, **wrong})
