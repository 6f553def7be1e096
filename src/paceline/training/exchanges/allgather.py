"""All-gather, in which every rank sends all its elements to all ranks. Each rank compresses once, and N times the bytes are
moved."""

from __future__ import annotations

from paceline.training.exchanges.streams.encoded_streams import Stream
from paceline.training.exchanges.wires.collectives import NOTHING, CollectiveSteps, Wire, sent_by_one_of
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def allgather(stream: Stream, start: int, stop: int, wire: Wire, buffers: Buffers = FRESH) -> CollectiveSteps[None]:
    """Replace elements ``start`` to ``stop`` by their sum over the workers, added in rank order on every rank."""
    n, me = wire.world_size, wire.rank
    with wire.meter.span("encode", "codec"):
        own = stream.encode(start, stop, 1, buffers=buffers)
    lengths = [stream.length(start, stop, 1) if rank != me else 0 for rank in range(n)]
    outgoing = [own if rank != me else NOTHING for rank in range(n)]
    arrived = yield from wire.deliver(outgoing, lengths, [stop - start] * n, "all_gather", buffers)
    with wire.meter.span("decode", "codec"):
        messages = [arrived[rank] if rank != me else own for rank in range(n)]
        with sent_by_one_of(wire, dict(enumerate(messages))):
            stream.set_sum(messages, start, stop, buffers)
