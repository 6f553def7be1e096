"""A length that another rank announces is compared with what its elements can take, before memory is asked for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline import codecs
from paceline.codecs import PayloadError, counter
from paceline.codecs.container import HEADER_BYTES
from paceline.strategy import EXCHANGES
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.wires import collectives
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup
from strategy_toys import WAYS

COUNT = 400
LONGEST = HEADER_BYTES + 4 * COUNT


@pytest.mark.parametrize("length", [1 << 62, 1 << 31, LONGEST + 1, -1, -(1 << 62)])
@pytest.mark.parametrize("exchange", WAYS)
def test_a_forged_length_is_refused_before_it_is_allocated(exchange: str, length: int, monkeypatch: Any) -> None:
    allocated: list[int] = []

    def rank(wire: Any) -> None:
        for name in ("all_to_all", "shift"):
            _record(wire, name, allocated)
        values = torch.linspace(-1, 1, COUNT)
        exchange_streams(
            [(CodecStream(codecs.get("inceptionn"), values, counter.Key(1, 1), 0), EXCHANGES[exchange])], wire, 1 << 20
        )

    def forged(message: torch.Tensor, *memory: Any) -> torch.Tensor:
        return torch.tensor([length if message.numel() else 0]).view(torch.uint8)

    monkeypatch.setattr(collectives, "_length", forged)
    with pytest.raises(PayloadError, match="announces a message of"):
        LocalGroup(3).run(rank)
    assert max(allocated, default=0) <= LONGEST and min(allocated, default=0) >= 0


def _record(wire: Any, name: str, allocated: list[int]) -> None:
    collective = getattr(wire, name)

    def recorded(messages: Any, expected: Any, *others: Any) -> Any:
        allocated.extend([expected] if isinstance(expected, int) else expected)
        return collective(messages, expected, *others)

    setattr(wire, name, recorded)


@pytest.mark.parametrize("exchange", WAYS)
def test_lengths_that_are_true_pass(exchange: str) -> None:
    def rank(wire: Any) -> torch.Tensor:
        values = torch.linspace(-1, 1, COUNT)
        exchange_streams(
            [(CodecStream(codecs.get("inceptionn"), values, counter.Key(1, 1), 0), EXCHANGES[exchange])], wire, 1 << 20
        )
        return values

    results = LocalGroup(3).run(rank)
    assert all(torch.equal(values, results[0]) for values in results)
    torch.testing.assert_close(results[0], 3 * torch.linspace(-1, 1, COUNT), rtol=0, atol=3e-2)
