"""Exchange by push to the owner, sum there, and pull of the sum; ``sharded`` and ``parameter_server`` differ only in owners."""

from __future__ import annotations

from paceline.strategy import Exchange, shard_bounds
from paceline.training.exchanges.streams.encoded_streams import Stream
from paceline.training.exchanges.wires.collectives import NOTHING, CollectiveSteps, Wire, sent_by, sent_by_one_of
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def push_pull(
    stream: Stream,
    start: int,
    stop: int,
    wire: Wire,
    buffers: Buffers = FRESH,
    *,
    exchange: Exchange,
    compress_pull: bool = True,
) -> CollectiveSteps[None]:
    """Replace elements ``start`` to ``stop`` by their sum over the workers, the same bits on every rank.

    A rank does not send the elements that it owns to itself. It decodes its own pull message as all others do. Without
    ``compress_pull`` the sums are sent as fp32.
    """
    n, me = wire.world_size, wire.rank
    shards = shard_bounds(stop - start, n, exchange.owners(n, servers=1), stream.block)
    bounds = [(start + a, start + b) for a, b in shards]
    others = [rank for rank in range(n) if rank != me]
    mine, sizes = bounds[me], [stop - start for start, stop in bounds]

    with wire.meter.span("encode", "codec"):
        sent = stream.encode_each([bounds[rank] for rank in others], 1, buffers=buffers)
        pushes = [*sent[:me], NOTHING, *sent[me:]]
        stream.settle(*mine, buffers)
    lengths = [stream.length(*mine, 1) if rank != me else 0 for rank in range(n)]
    arrived = yield from wire.deliver(pushes, lengths, [sizes[me]] * n, "push", buffers)

    with wire.meter.span("reduce", "codec"):
        for rank in others:
            with sent_by(wire, rank):
                stream.add(arrived[rank], *mine)
        with sent_by_one_of(wire, dict(enumerate(arrived))):
            own = stream.encode(*mine, n, not compress_pull, buffers)
    pulls = [own if rank != me else NOTHING for rank in range(n)]
    lengths = [stream.length(*bounds[rank], n, not compress_pull) if rank != me else 0 for rank in range(n)]
    arrived = yield from (wire if compress_pull else wire.exact).deliver(pulls, lengths, sizes, "pull", buffers)

    with wire.meter.span("decode", "codec"):
        with sent_by(wire, me):
            stream.set(own, *mine, n, not compress_pull)
        for rank in others:
            with sent_by(wire, rank):
                stream.set(arrived[rank], *bounds[rank], n, not compress_pull)
