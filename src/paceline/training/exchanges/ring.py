"""INCEPTIONN's gradient-centric exchange: a ring with compressed gradients on every hop (Li et al. 2018, Algorithm 1)."""

from __future__ import annotations

from paceline.strategy import shard_bounds
from paceline.training.exchanges.streams.encoded_streams import Stream
from paceline.training.exchanges.wires.collectives import CollectiveSteps, Wire, sent_by
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def ring(stream: Stream, start: int, stop: int, wire: Wire, buffers: Buffers = FRESH) -> CollectiveSteps[None]:
    """Replace elements ``start`` to ``stop`` by their sum over the workers, the same bits on every rank.

    Each of N-1 hops adds one contribution to a block and compresses the partial sum again. Another N-1 hops forward the final
    block unchanged, so that every rank, including the last one that added, decodes the same bytes.

    A hop encodes what the hop before has sent, so the first half takes N-1 calls one after another. The second half could be
    one call that sends a block to all other ranks. It stays a ring, since a node of L ranks sends N-1 blocks over the network
    this way, and L (N-L) of them by direct messages.
    """
    n, me = wire.world_size, wire.rank
    left = (me - 1) % n
    blocks = [(start + a, start + b) for a, b in shard_bounds(stop - start, n, block=stream.block)]
    for hop in range(1, n):
        out, into = blocks[(me - hop + 1) % n], blocks[(me - hop) % n]
        with wire.meter.span("encode", "codec"), sent_by(wire, left):  # some streams read what arrived only now
            message = stream.encode(*out, hop, buffers=buffers)
            stream.settle(*into, buffers)
        elements = into[1] - into[0]
        arrived = yield from wire.pass_on(message, stream.length(*into, hop), elements, "reduce_scatter", buffers)
        with wire.meter.span("reduce", "codec"), sent_by(wire, left):
            stream.add(arrived, *into, hop)

    finished = blocks[(me + 1) % n]
    with wire.meter.span("encode", "codec"), sent_by(wire, left):
        message = stream.encode(*finished, n, buffers=buffers)
    with wire.meter.span("decode", "codec"), sent_by(wire, me):
        stream.set(message, *finished, n)
    for hop in range(1, n):
        into = blocks[(me + 1 - hop) % n]
        message = yield from wire.pass_on(message, stream.length(*into, n), into[1] - into[0], "all_gather", buffers)
        with wire.meter.span("decode", "codec"), sent_by(wire, left):
            stream.set(message, *into, n)
