"""Roles of layers by name: a product divides by columns or rows, an embedding by entries, experts not at all."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.prediction.passes.layer_roles import forward_product, is_expert, style

BERT = {layer.name: layer for layer in Workload.named("bert-large").layers}


@pytest.mark.parametrize(
    ("name", "role", "product"),
    [
        ("embeddings.tokens", "entries", False),
        ("embeddings.norm", "tokens", False),
        ("encoder.0.attention.query", "columns", True),
        ("encoder.0.attention", "inside", False),
        ("encoder.0.attention.output", "rows", True),
    ],
)
def test_a_layer_has_the_role_of_its_name(name: str, role: str, product: bool) -> None:
    assert style(BERT[name]) == role and (forward_product(BERT[name]) is not None) is product


def test_experts_are_one_grouped_layer_and_a_router_is_none_of_them() -> None:
    assert is_expert("blocks.3.experts.expand") and not is_expert("blocks.3.router") and not is_expert("blocks.3.experts.0")
