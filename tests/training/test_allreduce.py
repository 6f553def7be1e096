"""The engine's all-reduce of one buffer: its mean, in fp32 or in bfloat16 with bfloat16's range."""

from __future__ import annotations

import pytest
import torch

from paceline.strategy import BF16, FP32, Format, ring_bytes
from paceline.training.exchanges import allreduce
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire

COUNT = 999


def gradient(rank: int, scale: float) -> torch.Tensor:
    return scale * (1 + torch.rand(COUNT, generator=torch.Generator().manual_seed(rank)))


@pytest.mark.parametrize("scale", [1e-20, 1e-6, 1.0, 1e6, 1e30])
@pytest.mark.parametrize(("fmt", "error"), [(FP32, 2**-22), (BF16, 2**-6)], ids=["fp32", "bf16"])
def test_every_rank_has_the_mean_of_gradients_of_any_size(fmt: Format, error: float, scale: float) -> None:
    """fp16, which is as short as bfloat16, holds neither 1e6 nor 1e-20."""
    ranks = 3

    def exchanged(wire: LocalWire) -> tuple[torch.Tensor, int]:
        values = gradient(wire.rank, scale)
        allreduce(values, fmt, wire)
        return values, wire.meter.sent_bytes

    mean = torch.stack([gradient(rank, scale) for rank in range(ranks)]).double().mean(0)
    (values, sent), *others = LocalGroup(ranks).run(exchanged)
    assert all(torch.equal(other, values) for other, _ in others)
    torch.testing.assert_close(values.double(), mean, rtol=error, atol=0)
    assert sent == ring_bytes(COUNT * int(fmt.element_bits) // 8, ranks)
    assert fmt is FP32 or torch.equal(values, values.bfloat16().float())
