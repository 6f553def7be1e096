"""Casts of autocast in a trace: their bytes follow from the shapes, and only a trace that asks for them has them."""

from __future__ import annotations

import torch
from torch import nn

from paceline.workload.tracing.trace import trace


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(24), nn.Linear(24, 40, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wide(self.norm(x)).float()


def test_a_product_after_a_norm_casts_its_input_its_weight_and_their_gradients() -> None:
    given = torch.zeros(2, 7, 24)
    plain, casting = (trace(Block(), given, casts=casts) for casts in (False, True))
    added = {(layer.name, o.backward): o for layer in casting.layers for o in layer.operations if o.autocast}
    assert not any(o.autocast for layer in plain.layers for o in layer.operations)
    forward = added["wide", False]
    # each cast reads 4 bytes and writes 2; a table counts bytes at fp32, which are twice those in 16 bits
    assert forward.bytes == 2 * 6 * 7 * 24 and forward.fixed_bytes == 2 * 6 * 24 * 40 and forward.calls == 2
    back = added["wide", True]  # no gradient of an earlier pass is added to
    assert back.bytes == forward.bytes and back.fixed_bytes == forward.fixed_bytes and back.calls == 2
    assert plain.flops_per_sample == casting.flops_per_sample and plain.activation_bytes == casting.activation_bytes
    assert casting.from_json(casting.to_json()) == casting
