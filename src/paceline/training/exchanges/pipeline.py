"""Pipeline of chunks, in which the codec works on one chunk while another is on the wire.

On a GPU all chunks go on together instead: they are encoded, one call sends all of them, and all are decoded.

The order of collectives depends only on the number of chunks, so it is the same on every rank.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from paceline.training.exchanges.wires.collectives import CollectiveSteps, Pending, Wire
from paceline.training.exchanges.wires.joined_calls import joined

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


def run_chunks(chunks: Iterable[CollectiveSteps[None]], wire: Wire, *, at_once: bool) -> None:
    """Run all chunks of an exchange over ``wire``; ``at_once`` as on a GPU."""
    if not at_once:
        pipeline(chunks)
        return
    every = list(chunks)
    with joined(wire):
        pipeline(every, len(every))


def _go_on(chunk: CollectiveSteps[None], arrived: Any, under_way: deque[tuple[CollectiveSteps[None], Pending[Any]]]) -> None:
    with suppress(StopIteration):
        under_way.append((chunk, chunk.send(arrived)))
