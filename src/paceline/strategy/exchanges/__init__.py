"""Descriptions of exchanges: the bytes that each rank sends to each other for one group of gradients.

Each module of this package declares one exchange as a final class and its only object. ``EXCHANGES`` finds all of them.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module

from paceline.strategy.compression.compression import Compression
from paceline.strategy.exchanges.exchange import ChunkedExchange, Exchange, codes_in_place
from paceline.strategy.exchanges.messages import message_bytes
from paceline.strategy.exchanges.traffic import (
    CHUNK_ELEMENTS,
    FLAGS,
    CodecWork,
    Traffic,
    column_bounds,
    shard_bounds,
)

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

EXCHANGES: Mapping[str, Exchange] = dict(sorted(Exchange.known.items(), key=lambda named: named[1].position))
"""All exchanges by name."""
OF_HOSTS = tuple(name for name, exchange in EXCHANGES.items() if not exchange.uses_switch)
"""Names of the exchanges that need only hosts and links."""


@cache
def carriers(compression: Compression) -> tuple[Exchange, ...]:
    """Return the exchanges that can carry a compression, starting with the default."""
    able = [exchange for exchange in EXCHANGES.values() if exchange.carries(compression)]
    return tuple(sorted(able, key=lambda exchange: exchange.name != compression.preferred))


__all__ = [
    "CHUNK_ELEMENTS",
    "EXCHANGES",
    "FLAGS",
    "OF_HOSTS",
    "ChunkedExchange",
    "CodecWork",
    "Exchange",
    "Traffic",
    "carriers",
    "codes_in_place",
    "column_bounds",
    "message_bytes",
    "shard_bounds",
]
