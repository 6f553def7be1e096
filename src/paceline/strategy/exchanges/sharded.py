"""Sharded exchange, which pushes to the owner of a shard and pulls its sum. Every worker owns one shard."""

from __future__ import annotations

from typing import final

from paceline.strategy.compression.formats import Format
from paceline.strategy.exchanges.exchange import ChunkedExchange
from paceline.strategy.exchanges.messages import ChunkTraffic, all_message_bytes, with_sizes
from paceline.strategy.exchanges.traffic import CodecWork, shard_sizes


class PushPull(ChunkedExchange):
    """Exchange with the owners of shards in two steps, push and pull. Owners send nothing to themselves."""

    __slots__ = ()
    has_pull = True

    def chunk(self, count: int, fmt: Format, members: int, back: Format | None, servers: int) -> ChunkTraffic:
        """Return the push and the pull of one chunk; see ``ChunkedExchange.chunk``."""
        owned = shard_sizes(count, members, self.owners(members, servers), fmt.block)
        pulled = back or fmt
        messages = [int(size > 0) for size in owned]
        lanes = [
            *with_sizes("push", "push", all_message_bytes(owned, fmt), messages, fmt, 1),
            *with_sizes("pull", "pull", all_message_bytes(owned, pulled, members), messages, pulled, 1),
        ]
        out, into = CodecWork(encode=count, reduce=owned[0] * members), CodecWork(encode=owned[0], decode=count)
        return ChunkTraffic(lanes, out.plus(into)) if back is None else ChunkTraffic(lanes, out, into)


@final
class Sharded(PushPull):
    """Sharded exchange in which every worker owns a shard."""

    __slots__ = ()
    name, position = "sharded", 1
    reduces_to_owners = adds_on_host = True


SHARDED = Sharded()
