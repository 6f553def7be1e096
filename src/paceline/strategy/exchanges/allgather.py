"""All-gather of encoded gradients: every rank receives all messages and adds them."""

from __future__ import annotations

from typing import final

from paceline.strategy.compression.formats import Format
from paceline.strategy.exchanges.exchange import ChunkedExchange, Exchange
from paceline.strategy.exchanges.messages import ChunkTraffic, message_bytes, with_sizes
from paceline.strategy.exchanges.sharded import SHARDED
from paceline.strategy.exchanges.traffic import CodecWork


@final
class AllGather(ChunkedExchange):
    """All-gather in which each worker sends its whole chunk to all others, and adds the N chunks in rank order."""

    __slots__ = ()
    name, position = "allgather", 4
    adds_on_host = True

    def carrier(self, coded: bool) -> Exchange:
        """Return the exchange of one stream, which is ``sharded`` for dense tensors: it sends only 2 (N-1)/N of their bytes."""
        return self if coded else SHARDED

    def chunk(self, count: int, fmt: Format, members: int, back: Format | None, servers: int) -> ChunkTraffic:
        """Return the all-gather of one chunk; see ``ChunkedExchange.chunk``."""
        del back, servers
        sizes, messages = [message_bytes(count, fmt)] * members, [int(count > 0)] * members
        lanes = with_sizes("all_gather", "pull", sizes, messages, fmt, 1)
        return ChunkTraffic(lanes, CodecWork(encode=count, reduce=count * members))

    def copied(self, elements: int) -> CodecWork:
        """Return the work of a CPU, which adds ``elements`` into the buffer."""
        return CodecWork(elements, reduce=elements)


ALLGATHER = AllGather()
