"""Sums in a switch between the nodes (Sapio et al. 2021, SwitchML, NSDI; Graham et al. 2016, SHARP, COMHPC)."""

from __future__ import annotations

from typing import final

import numpy as np

from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import Format
from paceline.strategy.exchanges.exchange import ChunkedExchange
from paceline.strategy.exchanges.messages import ChunkTraffic, MessageLane, message_bytes
from paceline.strategy.exchanges.traffic import CodecWork


@final
class Switch(ChunkedExchange):
    """Exchange through a switch that adds: every rank sends its chunk and receives the sum of N contributions at once."""

    __slots__ = ()
    name, position = "switch", 6
    uses_switch = True
    refusal = "packed codes cannot be added"
    chunk_elements = 1 << 17  # sums arrive while later chunks are sent

    def carries(self, compression: Compression) -> bool:
        """Return whether some switch can add the compression's messages."""
        return bool(compression.switch_sums)

    def chunk(self, count: int, fmt: Format, members: int, back: Format | None, servers: int) -> ChunkTraffic:
        """Return the traffic to and from the switch for one chunk; see ``ChunkedExchange.chunk``."""
        del back, servers
        up, down = (np.full(members, message_bytes(count, fmt, times), dtype=np.int64) for times in (1, members))
        return ChunkTraffic([MessageLane("aggregate", "switch", up, 1, back=down)], CodecWork(encode=count, decode=count))


SWITCH = Switch()
