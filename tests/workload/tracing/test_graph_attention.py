"""Graph attention in a trace: messages are summed as they are read."""

from __future__ import annotations

import torch
from torch import nn

from paceline.models.rgat import GraphAttention
from paceline.workload.tracing.trace import trace


class Relation(nn.Module):
    def __init__(self, edges: int) -> None:
        super().__init__()
        self.edges, self.attention = edges, GraphAttention(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.attention(x, x[:, :5], self.edges)
        return result


def test_no_message_of_an_edge_is_stored() -> None:
    few, many = (trace(Relation(edges), torch.zeros(2, 9, 8)) for edges in (20, 40))
    assert not few.coverage.unknown
    more = sum(o.bytes for layer in many.layers for o in layer.operations) - sum(
        o.bytes for layer in few.layers for o in layer.operations
    )
    assert 0 < more / 20 < 4 * 512  # an edge adds its scores and indices: less than one write of 512 units
