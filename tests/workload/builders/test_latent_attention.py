"""Latent attention: the products of its paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.workload import LatentAttention, TransformerShape, Workload

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


def products(table: Workload, backward: bool) -> float:
    return sum(o.flops for layer in table.layers for o in layer.operations if o.kind == "matmul" and o.backward == backward)


def test_latent_attention_has_the_products_of_its_paper() -> None:
    """DeepSeek-V2, arXiv:2405.04434, section 2.1 and appendix C: ranks, and a head's width for scores and for values."""
    s, h, heads = 128, 256, 8
    m = LatentAttention(q_rank=96, kv_rank=64, nope=32, rope=16, value=24)
    table = Workload.from_shape(replace(SHAPE, layers=1, hidden=h, heads=heads, latent=m), s)
    down, up = h * (96 + 64 + 16), 96 * heads * 48 + 64 * heads * (32 + 24)
    rest = heads * 24 * h + 3 * h * 160 + h * 100
    assert products(table, False) == 2 * s * (down + up + rest)
    forward, backward = (
        sum(o.flops for x in table.layers for o in x.operations if o.kind == "attention" and o.backward == back)
        for back in (False, True)
    )
    assert forward == 2 * s * s * heads * (48 + 24)
    assert backward == 2 * s * s * heads * (3 * 48 + 2 * 24)
    written = Workload.from_shape(replace(SHAPE, layers=1, hidden=h, heads=heads, latent=m), s, fused_attention=False)
    assert products(written, False) == products(table, False) + forward


@pytest.mark.parametrize("wrong", [{"kv_rank": 0}, {"value": -1}, {"q_rank": -1}])
def test_latent_attention_that_cannot_be_is_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="no latent attention has"):
        LatentAttention(**{"kv_rank": 8, "nope": 8, "rope": 8, "value": 8, **wrong})
