"""Modules that are custom kernels on a GPU."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from paceline.workload.hub.kernels import builder


class TinyExperts(nn.Module):
    """Weights as transformers 5 holds them: (experts, outputs, inputs)."""

    def __init__(self, gate: bool) -> None:
        super().__init__()
        self.has_gate, self.has_bias = gate, False
        first = nn.Parameter(torch.empty(4, 2 * 6 if gate else 6, 8, device="meta"))
        self.gate_up_proj, self.up_proj = (first, None) if gate else (None, first)
        self.down_proj = nn.Parameter(torch.empty(4, 8, 6, device="meta"))


def layers(module: Any, extra: int = 0) -> Any:
    build = builder(module)
    assert build is not None
    if extra:
        module.more = nn.Parameter(torch.empty(extra, device="meta"))
    tokens = torch.empty(2 * 10, 8, device="meta"), torch.empty(2 * 10, 3, device="meta")
    return build.build(module, tokens, {}, 2)


def test_experts_are_grouped_products_of_the_tokens_that_they_get() -> None:
    for gate, products in ((True, 3), (False, 2)):
        own = layers(TinyExperts(gate))
        assert sum(prod(shape) for part in own for _, shape in part.weights) == 4 * products * 8 * 6
        flops = sum(o.flops for part in own for o in part.operations if o.kind == "matmul" and not o.backward)
        assert flops == 2 * 10 * 3 * products * 8 * 6


def test_a_module_with_other_parameters_and_one_of_another_class_are_traced() -> None:
    assert layers(TinyExperts(True), extra=5) is None
    assert builder(nn.Linear(2, 2)) is None and builder(SimpleNamespace()) is None
