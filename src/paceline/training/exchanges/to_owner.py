"""Reduce-scatters of encoded rows: row j of every rank's matrix is summed at rank j, and nothing is returned.

A stream holds ``rows`` rows of ``columns`` elements each, one row for each rank. This is the first half of ``push_pull`` and of
``ring``: FSDP2 and ZeRO need no more of an exchange (Rajbhandari et al. 2020, ZeRO, SC, section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.strategy.exchanges import Exchange, column_bounds
from paceline.strategy.exchanges.ring import RING
from paceline.strategy.exchanges.sharded import SHARDED
from paceline.training.exchanges.pipeline import run_chunks
from paceline.training.exchanges.streams.encoded_streams import Stream, are_queued, settle_checks
from paceline.training.exchanges.wires.collectives import NOTHING, CollectiveSteps, Wire, sent_by
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers

Rows = list[tuple[int, int]]
"""``(start, stop)`` of the same columns in each row of a stream."""


def push_to_owner(stream: Stream, rows: Rows, wire: Wire, buffers: Buffers = FRESH) -> CollectiveSteps[None]:
    """Send each owner this rank's contribution, and add at the owner."""
    me = wire.rank
    others = [rank for rank in range(wire.world_size) if rank != me]
    start, stop = rows[me]
    with wire.meter.span("encode", "codec"):
        sent = stream.encode_each([rows[rank] for rank in others], 1, buffers=buffers)
        pushes = [*sent[:me], NOTHING, *sent[me:]]
        stream.settle(start, stop, buffers)
    lengths = [stream.length(start, stop, 1) if rank != me else 0 for rank in range(wire.world_size)]
    arrived = yield from wire.deliver(pushes, lengths, [stop - start] * wire.world_size, "push", buffers)
    with wire.meter.span("reduce", "codec"):
        for rank in others:
            with sent_by(wire, rank):
                stream.add(arrived[rank], start, stop)


def ring_to_owner(stream: Stream, rows: Rows, wire: Wire, buffers: Buffers = FRESH) -> CollectiveSteps[None]:
    """Pass partial sums over N-1 ranks to their owner; each hop encodes them again (Li et al. 2018, Algorithm 1)."""
    n, me = wire.world_size, wire.rank
    for hop in range(1, n):
        out, into = rows[(me - hop) % n], rows[(me - hop - 1) % n]
        with wire.meter.span("encode", "codec"):
            message = stream.encode(*out, hop, buffers=buffers)
            stream.settle(*into, buffers)
        elements = into[1] - into[0]
        arrived = yield from wire.pass_on(message, stream.length(*into, hop), elements, "reduce_scatter", buffers)
        with wire.meter.span("reduce", "codec"), sent_by(wire, (me - 1) % n):
            stream.add(arrived, *into, hop)


TO_OWNER: Mapping[Exchange, Callable[[Stream, Rows, Wire, Buffers], CollectiveSteps[None]]] = {
    SHARDED: push_to_owner,
    RING: ring_to_owner,
}
"""Reduce-scatters of encoded rows, by the exchange whose first half they are."""


def reduce_to_owners(streams: list[Stream], wire: Wire, exchange: Exchange) -> None:
    """Replace this rank's row of each stream by its sum over the ranks; other rows are overwritten.

    Several chunks of columns are in flight. A stream has one row for each rank of ``wire``.
    """
    chunks = (
        _with_buffers(exchange, stream, [(row + a, row + b) for row in _starts(stream, wire)], wire)
        for stream in streams
        for a, b in column_bounds(stream.count // wire.world_size, wire.world_size, stream.block)
    )
    run_chunks(chunks, wire, at_once=wire.joins and are_queued(streams))
    settle_checks(streams)


def _with_buffers(exchange: Exchange, stream: Stream, rows: Rows, wire: Wire) -> CollectiveSteps[None]:
    """Reduce one chunk. At the end all its messages are sent and read, so that another chunk may use their memory."""
    with wire.pool.lent() as buffers:
        yield from TO_OWNER[exchange](stream, rows, wire, buffers)


def _starts(stream: Stream, wire: Wire) -> range:
    """Return the first element of every row."""
    columns = stream.count // wire.world_size
    return range(0, stream.count, columns)
