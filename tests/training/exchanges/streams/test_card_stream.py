"""Codecs in the network cards: what a ring through cards gives is, bit for bit, what the codec on the hosts gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline import codecs
from paceline.codecs import Key
from paceline.codecs.codec import Codec
from paceline.strategy import EXCHANGES
from paceline.training.exchanges import exchange_streams
from paceline.training.exchanges.streams.card_stream import CardStream
from paceline.training.exchanges.streams.encoded_streams import CodecStream, Stream
from paceline.training.exchanges.wires.collectives import NOTHING, Pending, Wire
from paceline.training.exchanges.wires.in_process_collectives import LocalGroup, LocalWire


class CardedWire(LocalWire):
    """A local wire whose every message passes a card on its way. ``exact`` is the same ranks' wire without."""

    def __init__(self, wire: LocalWire, codec: Codec) -> None:
        super().__init__(wire.local, wire.rank)
        self._plain, self._codec = wire, codec

    @property
    def exact(self) -> Wire:
        self._plain._calls = self._calls = max(self._calls, self._plain._calls) + 1_000_000
        return self._plain

    def _passed(self, message: torch.Tensor) -> torch.Tensor:
        if not message.numel():
            return NOTHING
        values = message.view(torch.float32).clone()
        codecs.decode(codecs.encode(self._codec, values), values)
        return values.view(torch.uint8)

    def all_to_all(
        self, outgoing: Sequence[torch.Tensor], expected: Sequence[int], name: str, *memory: Any
    ) -> Pending[Sequence[torch.Tensor]]:
        return super().all_to_all([self._passed(m) for m in outgoing], expected, name, *memory)

    def shift(self, message: torch.Tensor, expected: int, name: str, *memory: Any) -> Pending[torch.Tensor]:
        return super().shift(self._passed(message), expected, name, *memory)


def summed(codec: Codec, exchange: str, workers: int, count: int, in_card: bool, compress_pull: bool) -> list[torch.Tensor]:
    """Every rank's sum of seeded gradients, some of them in each of the codec's sizes but the largest."""

    def rank(wire: LocalWire) -> torch.Tensor:
        generator = torch.Generator().manual_seed(wire.rank)
        values = torch.randn(count, generator=generator) * 10 ** (-3 * torch.rand(count, generator=generator)) * 0.1
        stream: Stream = CodecStream(codec, values, Key(0, 0), 0)
        if in_card:
            stream, wire = CardStream(codec, values, workers), CardedWire(wire, codec)
        exchange_streams([(stream, EXCHANGES[exchange])], wire, 1024, compress_pull)
        return values

    return LocalGroup(workers).run(rank)


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize(("exchange", "compress_pull"), [("ring", True), ("sharded", True), ("parameter_server", False)])
def test_cards_give_the_bits_of_the_codec_on_the_hosts(exchange: str, compress_pull: bool, workers: int) -> None:
    codec = codecs.get("inceptionn", bound=2.0**-8)
    count = 2048 + 64 * workers + 48
    on_hosts, in_cards = (summed(codec, exchange, workers, count, in_card, compress_pull) for in_card in (False, True))
    for host, card in zip(on_hosts, in_cards, strict=True):
        assert torch.equal((host + 0.0).view(torch.int32), (card + 0.0).view(torch.int32))  # but for the signs of zeros


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("bound", [2.0**-1, 2.0**-10, 2.0**-15])
def test_replicas_are_equal_though_a_card_never_codes_what_its_own_host_keeps(workers: int, bound: float) -> None:
    sums = summed(codecs.get("inceptionn", bound=bound), "ring", workers, 1999, True, True)
    assert all(torch.equal(one.view(torch.int32), sums[0].view(torch.int32)) for one in sums)


def test_a_finished_sum_codes_to_itself() -> None:
    """Else a card between two hops would change it: on any fp32 pattern, and for every bound."""
    bits = torch.randint(-(1 << 31), 1 << 31, (200_000,), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.randn(100_000) * 0.02])
    for k in range(1, 16):
        codec = codecs.get("inceptionn", bound=2.0**-k)
        once = torch.from_numpy(codecs.decode(codecs.encode(codec, values)))
        twice = torch.from_numpy(codecs.decode(codecs.encode(codec, once)))
        assert torch.equal((once + 0.0).view(torch.int32)[~once.isnan()], twice.view(torch.int32)[~once.isnan()])
