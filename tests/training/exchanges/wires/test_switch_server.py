"""The switch that adds: its sums are those of the codec's definition, and every rank receives the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import codecs
from paceline.codecs import key
from paceline.codecs.reference.dense import Fp32
from paceline.codecs.reference.ternary import Ternary, TernarySum
from paceline.training.exchanges.wires.switch_server import add_messages

COUNT, CHUNK = 10_007, 4096


def encoded(codec: Any, values: torch.Tensor, rank: int) -> torch.Tensor:
    return torch.as_tensor(codecs.encode(codec, values, key(3, 5, rank), 0))


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 17])
def test_the_sum_of_ternaries_is_the_exact_integer_sum(workers: int) -> None:
    generator = torch.Generator().manual_seed(workers)
    values = [torch.rand(777, generator=generator) * 2 - 1 for _ in range(workers)]
    messages = [encoded(Ternary(scale=1.0), v, rank) for rank, v in enumerate(values)]
    total = sum(torch.from_numpy(codecs.decode(m)) for m in messages)
    message = add_messages(messages)
    assert torch.equal(torch.from_numpy(codecs.decode(message)), total)
    if workers > 1:
        assert message.numel() == codecs.payload_bytes(TernarySum(workers=workers), 777)


def test_fp32_is_added_in_the_order_of_ranks() -> None:
    values = [torch.randn(500, generator=torch.Generator().manual_seed(n)) for n in range(5)]
    message = add_messages([encoded(Fp32(), v, 0) for v in values])
    expected = values[0].clone()
    for v in values[1:]:
        expected += v
    assert torch.equal(torch.from_numpy(codecs.decode(message)), expected)


def test_a_damaged_message_is_not_added() -> None:
    messages = [encoded(Ternary(scale=1.0), torch.ones(100), rank) for rank in range(2)]
    messages[1][40] ^= 1
    with pytest.raises(codecs.PayloadError):
        add_messages(messages)
