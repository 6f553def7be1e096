"""Pipeline of chunks, in which the codec works on one chunk while another is on the wire.

The order of collectives depends only on the number of chunks, so it is the same on every rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from paceline.training.exchanges.wires.collectives import CollectiveSteps, Pending

DEPTH = 3  # chunks in flight: one in encoding, one on the wire, one in decoding


def pipeline(chunks: Iterable[CollectiveSteps[None]], depth: int = DEPTH) -> None:
    """Run all chunks in turns, at most ``depth`` at the same time."""
    source = iter(chunks)
    under_way: deque[tuple[CollectiveSteps[None], Pending[Any]]] = deque()
    more = True
    while more or under_way:
        while more and len(under_way) < depth:
            chunk = next(source, None)
            more = chunk is not None
            if chunk is not None:
                _go_on(chunk, None, under_way)
        if under_way:
            chunk, pending = under_way.popleft()
            _go_on(chunk, pending.wait(), under_way)


def _go_on(chunk: CollectiveSteps[None], arrived: Any, under_way: deque[tuple[CollectiveSteps[None], Pending[Any]]]) -> None:
    with suppress(StopIteration):
        under_way.append((chunk, chunk.send(arrived)))
