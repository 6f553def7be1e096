"""Push to the owner, sum there, pull the sum: ``sharded`` and ``parameter_server`` differ only in who owns what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.strategy import shard_bounds
from paceline.training.streams import Bytes, Stream
from paceline.training.wire import Wire

_NOTHING: Bytes = np.empty(0, np.uint8)


def push_pull(streams: Sequence[Stream], exchange: str, wire: Wire) -> None:
    """Fill ``stream.out`` of every stream with the mean over the workers, the same bits on every rank.

    A message holds the parts of all streams, in order. What a rank owns of itself never touches the wire.
    """
    n, me, meter = wire.world_size, wire.rank, wire.meter
    bounds = [shard_bounds(stream.count, exchange, n) for stream in streams]
    sizes = [[stop - start for start, stop in b] for b in bounds]
    push_bytes = [[s.format.push_bytes(size[rank]) for s, size in zip(streams, sizes, strict=True)] for rank in range(n)]
    pull_bytes = [[s.format.pull_bytes(size[rank], n) for s, size in zip(streams, sizes, strict=True)] for rank in range(n)]

    with meter.span("encode", "codec"):
        messages = [_join([s.encode(*b[rank]) for s, b in zip(streams, bounds, strict=True)]) for rank in range(n)]
    own, messages[me] = messages[me], _NOTHING
    incoming = wire.all_to_all(messages, [0 if rank == me else sum(push_bytes[me]) for rank in range(n)], "push")
    incoming[me] = own

    with meter.span("reduce", "codec"):
        parts = [_cut(message, push_bytes[me]) for message in incoming]
        sums = [s.reduce([p[i] for p in parts], sizes[i][me]) for i, s in enumerate(streams) if sizes[i][me]]
    own = _join(sums)
    outgoing = [_NOTHING if rank == me else own for rank in range(n)]
    pulled = wire.all_to_all(outgoing, [0 if rank == me else sum(pull_bytes[rank]) for rank in range(n)], "pull")
    pulled[me] = own

    with meter.span("decode", "codec"):
        for rank, message in enumerate(pulled):
            for stream, part, b in zip(streams, _cut(message, pull_bytes[rank]), bounds, strict=True):
                if part.size:
                    stream.decode(part, *b[rank])


def _join(parts: Sequence[Bytes]) -> Bytes:
    return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else _NOTHING


def _cut(message: Bytes, sizes: Sequence[int]) -> list[Bytes]:
    return np.split(message, np.cumsum(sizes)[:-1])
