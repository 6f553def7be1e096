"""Interface of an exchange, which describes the bytes between ranks for one group of gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from paceline.strategy.buckets import BucketPlan
from paceline.strategy.choices.values import Value
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import FP32, Format
from paceline.strategy.exchanges.messages import ChunkTraffic, MessageLane, StreamTraffic, message_bytes
from paceline.strategy.exchanges.traffic import CHUNK_ELEMENTS, FLAGS, SIZE_BYTES, CodecWork, Traffic, shard_sizes
from paceline.strategy.phase import Pattern, Phase

OwnerLane = tuple[tuple[str, Pattern], int, int]
"""Collective of a reduce-scatter to owners: name, pattern, bytes as in a ``Phase``, rounds."""


class Exchange(Value, ABC):
    """Method by which every worker gets the sum of all gradients.

    Attributes:
        position: place in lists of all exchanges.
        by_engine: True for the engine's own all-reduce, which works in DDP's buckets and adds plain numbers.
        has_pull: True if sums return in separate messages, which can be sent uncompressed.
        has_servers: True if ``servers`` among the workers own the shards.
        uses_nodes: True if the ranks of a node add their gradients first.
        uses_switch: True if a switch between the nodes adds.
        reduces_to_owners: True if it has a reduce-scatter, which sharded gradients need.
        adds_on_host: True if a host can add instead of a GPU.
        adds_in_card: True if network cards can compress its messages.
        refusal: reason in the error for a compression that it cannot carry.
        most_workers: largest number of workers that it is described for. Bytes are counted for each worker, except in an
            all-reduce, in which all send equally much. For a ring and a hierarchy it grows with the square of the workers.
        chunk_elements: elements of a chunk.
    """

    __slots__ = ()
    known: ClassVar[dict[str, Any]]
    position: ClassVar[int]
    by_engine: ClassVar[bool] = False
    has_pull: ClassVar[bool] = False
    has_servers: ClassVar[bool] = False
    uses_nodes: ClassVar[bool] = False
    uses_switch: ClassVar[bool] = False
    reduces_to_owners: ClassVar[bool] = False
    adds_on_host: ClassVar[bool] = False
    adds_in_card: ClassVar[bool] = False
    refusal: ClassVar[str] = "its factors are all-reduced"
    most_workers: ClassVar[int] = 1 << 16
    chunk_elements: ClassVar[int] = CHUNK_ELEMENTS

    @abstractmethod
    def describe(
        self,
        plan: BucketPlan,
        compression: Compression,
        world_size: int,
        ranks_per_node: int = 1,
        compress_pull: bool = True,
        servers: int = 1,
        in_card: bool = False,
        dense: Format = FP32,
    ) -> Traffic:
        """Return the traffic between the ranks for one group, and the codec's work.

        Args:
            compression: configured with its options.
            ranks_per_node: ranks of a node, which add first; divides ``world_size``. 1 for exchanges without nodes.
            compress_pull: True if sums return encoded; for exchanges with a pull.
            servers: number of workers that own shards, for exchanges with servers.
            in_card: True if network cards encode: hosts exchange fp32, and the cards compress messages between nodes.
            dense: format of unencoded numbers.
        """

    def carries(self, compression: Compression) -> bool:
        """Return whether the exchange can carry a compression."""
        return not compression.low_rank

    def carrier(self, coded: bool) -> Exchange:
        """Return the exchange that carries one stream, encoded or dense."""
        del coded
        return self

    def owners(self, workers: int, servers: int) -> int:
        """Return the number of workers that own a shard."""
        del servers
        return workers


class ChunkedExchange(Exchange):
    """Exchange of encoded messages in pipelined chunks of at most ``chunk_elements`` elements."""

    __slots__ = ()

    @abstractmethod
    def chunk(self, count: int, fmt: Format, members: int, back: Format | None, servers: int) -> ChunkTraffic:
        """Return the traffic of one chunk of ``count`` elements among the ``members`` of a group.

        Formats of unknown length send the sizes of their messages first, between the same ranks.

        Args:
            back: format of sums that return uncompressed; None: they return encoded.
        """

    def owner_chunk(self, count: int, fmt: Format, rows: int) -> list[OwnerLane]:
        """Return the collectives of ``count`` columns that are reduced to the owners of ``rows`` rows."""
        del rows
        own: list[OwnerLane] = [(("push", "push"), message_bytes(count, fmt), 1)]
        sizes: OwnerLane = (("sizes", "push"), SIZE_BYTES, 1)
        return [sizes, *own] if fmt.tells_sizes else own

    def copied(self, elements: int) -> CodecWork:
        """Return the work of a CPU that copies ``elements``, because they are not coded in place."""
        return CodecWork(elements, decode=elements)

    def describe(
        self,
        plan: BucketPlan,
        compression: Compression,
        world_size: int,
        ranks_per_node: int = 1,
        compress_pull: bool = True,
        servers: int = 1,
        in_card: bool = False,
        dense: Format = FP32,
    ) -> Traffic:
        """Return the traffic of all chunks of all streams; see ``Exchange.describe``."""
        local = ranks_per_node
        members = world_size // local
        chunked: dict[tuple[str, Pattern], MessageLane] = {}
        work = {True: CodecWork(), False: CodecWork()}  # keyed by True for the compressed stream
        chunks, largest, inner_own = 0, 0, 0
        inner = np.zeros((members, local), dtype=np.int64)
        for fmt, count in plan.streams(compression, dense):
            parts = [count] if local == 1 else shard_sizes(count, local, block=fmt.block)
            inner += dense.push_bytes(parts[0])  # the engine's collectives need equal shares: the last are padded
            inner_own += parts[0]
            if members == 1 and local > 1:  # one node: nothing is encoded
                continue
            carrier = self.carrier(fmt == compression.format)
            of_codec = fmt == compression.format and not in_card
            sent_as = replace(fmt, in_card=True) if in_card and fmt != FP32 else fmt
            back = None if compress_pull else dense
            columns = [_stream(part, sent_as, carrier, members, back, servers) for part in parts]
            by_hosts = _stream(parts[0], replace(FP32, block=fmt.block), carrier, members, back, servers) if in_card else None
            for place, lane in enumerate(columns[0].lanes):
                every = [column.lanes[place] for column in columns]
                sizes = np.stack([x.sizes for x in every], axis=1).reshape(
                    -1
                )  # ranks are node-major: equal local ranks are one stride apart
                plain = by_hosts.lanes[place].sizes if by_hosts else lane.plain
                joined = MessageLane(lane.name, lane.pattern, sizes, max(x.rounds for x in every), plain, lane.back)
                before = chunked.get(lane.key)
                chunked[lane.key] = joined if before is None else before.plus(joined)
            codec = of_codec and fmt != FP32
            work[codec] = work[codec].plus(columns[0].passes)
            work[False] = work[False].plus(columns[0].fp32)
            chunks += columns[0].chunks
            largest = max(largest, min(parts[0], self.chunk_elements))
        between = tuple(lane.phase(world_size, members, local) for lane in chunked.values())
        encoded = compression.lossy and plan.tensors > 0 and bool(between)
        scales = 4 * ((plan.tensors if compression.shares_scale else 0) + FLAGS)
        shared = (Phase("scales", (scales,), world_size),) if encoded else ()
        reduce: tuple[Phase, ...] = ()
        gather: tuple[Phase, ...] = ()
        adding = CodecWork()
        if local > 1:
            per_rank = tuple(inner.reshape(-1).tolist())
            reduce = (Phase("inner_reduce", per_rank, world_size, "push", local),)
            gather = (Phase("inner_gather", per_rank, world_size, "pull", local),)
            adding = CodecWork(reduce=inner_own * local)
        share = largest / max(1, inner_own)
        rest = plan.elements - (plan.compressed if codes_in_place(compression, compress_pull, local) else 0)
        copied = self.copied(rest)
        return Traffic(reduce + shared, between, gather, work[True], work[False], adding, chunks, share, copied)


def codes_in_place(compression: Compression, compress_pull: bool, members_of_node: int) -> bool:
    """Return whether a CPU codes gradients in place. Sums that return as fp32 and sums of a node need one buffer.

    Args:
        members_of_node: ranks that add before encoding; 1 for exchanges without nodes.
    """
    return compression.in_place and compress_pull and members_of_node == 1


def _stream(count: int, fmt: Format, carrier: Exchange, members: int, back: Format | None, servers: int) -> StreamTraffic:
    """Return the traffic of all chunks of a stream; the last may be short."""
    whole, rest = divmod(count, carrier.chunk_elements)
    last = _chunk(rest, fmt, carrier, members, back, servers)
    if not whole:
        return last
    return last.plus(_chunk(carrier.chunk_elements, fmt, carrier, members, back, servers), whole)


@lru_cache(maxsize=4096)
def _chunk(count: int, fmt: Format, carrier: Exchange, members: int, back: Format | None, servers: int) -> StreamTraffic:
    """Return the traffic of one chunk."""
    assert isinstance(carrier, ChunkedExchange)
    return StreamTraffic.of_chunk(count, carrier.chunk(count, fmt, members, back, servers))
