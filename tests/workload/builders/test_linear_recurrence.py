"""Linear attention in chunks, and the recurrence of Griffin."""

from __future__ import annotations

from math import prod

import pytest

from paceline.errors import UserError
from paceline.workload.builders.delta_rule import KimiDelta
from paceline.workload.builders.linear_recurrence import Lightning, gated_recurrence, linear_attention


def test_linear_attention_grows_with_the_tokens_and_not_with_their_square() -> None:
    def work(tokens: float) -> float:
        scan = linear_attention(tokens, heads=4, key_dim=16, value_dim=32, chunk=64)
        assert not scan.weights
        return sum(o.flops for o in scan.operations if not o.backward)

    assert work(4096) == pytest.approx(2 * work(2048))
    # scores of a chunk, half of them by values, and keys and queries by the states: multiply-adds of a token and head
    assert work(2048) == pytest.approx(2 * 2048 * 4 * (64 * 16 + 64 * 32 / 2 + 2 * 16 * 32))


def test_lightning_has_five_products_of_the_block_s_width() -> None:
    parts = Lightning(heads=4, width=16).layers(128, 48)
    assert sum(prod(shape) for part in parts for _, shape in part.weights) == 48 * 64 * 5 + 64
    with pytest.raises(UserError, match="lightning attention has dimensions"):
        Lightning(heads=0, width=16)


def test_the_recurrence_has_a_product_for_each_head_and_gate() -> None:
    parts = gated_recurrence(128, heads=4, width=16)
    flops = sum(o.flops for part in parts for o in part.operations if o.kind == "matmul" and not o.backward)
    assert flops == 2 * 2 * 128 * 4 * 16 * 16
    assert sum(prod(shape) for part in parts for _, shape in part.weights) == 2 * (4 * 16 * 16 + 4 * 16) + 4 * 16


def test_narrow_gates_have_fewer_weights() -> None:
    def weights(**ranks: int) -> int:
        parts = KimiDelta(heads=4, width=16, **ranks).layers(128, 48)
        return sum(prod(shape) for part in parts for _, shape in part.weights)

    assert weights() - weights(decay_rank=16) == 48 * 64 - 16 * (48 + 64)
