"""Gated delta rule: the FLOPs of its chunks, and its parameters."""

from __future__ import annotations

from math import prod

import pytest

from paceline.errors import UserError
from paceline.workload.builders.delta_rule import GatedDelta

BLOCK = GatedDelta(key_heads=2, key_dim=12, value_heads=6, value_dim=20, chunk=16)


def test_flops_of_a_chunk_are_those_of_its_products() -> None:
    c, k, v, s = 16, 12, 20, 48
    # keys by keys, queries by keys, the inverse by keys, the inverse itself; the inverse and the scores by values; the states
    # of old values, of queries and of new values
    chunk = 3 * c * c * k + c**3 / 3 + 2 * c * c * v + 3 * c * k * v
    scan = next(part for part in BLOCK.layers(s, 32) if part.name == "scan")
    forward = sum(o.flops for o in scan.operations if not o.backward)
    assert forward == pytest.approx(2 * chunk * (s / c) * 6)
    assert 2 * forward < sum(o.flops for o in scan.operations if o.backward) < 3 * forward


def test_parameters_are_those_of_the_projections() -> None:
    sizes = {part.name: sum(prod(shape) for _, shape in part.weights) for part in BLOCK.layers(48, 32)}
    gates, heads = 32 * 12, 12
    assert sizes == {
        "in": 32 * (48 + 240),
        "in_gates": gates,
        "conv": 4 * (48 + 120),
        "scan": heads,
        "norm": 20,
        "out": 32 * 120,
    }


def test_heads_of_keys_divide_those_of_values() -> None:
    with pytest.raises(UserError, match="6 heads"):
        GatedDelta(key_heads=4, key_dim=12, value_heads=6, value_dim=20)
