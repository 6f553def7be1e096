"""Exchanges, each of which replaces a chunk of a stream by its sum over the workers.

``exchange_group`` is the entry: it exchanges a group of gradients. ``streams`` encode and decode, ``wires`` carry messages,
``gradients`` hold places, samples and residuals. Each exchange has one module: ``ring``, ``allgather``, ``push_pull``, ...
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from paceline.strategy import Exchange
from paceline.strategy.exchanges.allgather import ALLGATHER
from paceline.strategy.exchanges.parameter_server import PARAMETER_SERVER
from paceline.strategy.exchanges.ring import RING
from paceline.strategy.exchanges.sharded import SHARDED
from paceline.strategy.exchanges.switch import SWITCH
from paceline.training.exchanges.allgather import allgather
from paceline.training.exchanges.allreduce import allreduce, begin_allreduce
from paceline.training.exchanges.in_switch import in_switch
from paceline.training.exchanges.pipeline import run_chunks
from paceline.training.exchanges.push_pull import push_pull
from paceline.training.exchanges.ring import ring
from paceline.training.exchanges.streams.encoded_streams import Stream, are_queued, settle_checks
from paceline.training.exchanges.wires.collectives import CollectiveSteps, Wire
from paceline.training.exchanges.wires.message_buffers import Buffers

ChunkExchange = Callable[[Stream, int, int, Wire, Buffers], CollectiveSteps[None]]
"""From a stream, the first and last element of a chunk, the wire and memory for the chunk's messages."""

CHUNKED: Mapping[Exchange, ChunkExchange] = {
    ALLGATHER: allgather,
    RING: ring,
    SHARDED: partial(push_pull, exchange=SHARDED),
    PARAMETER_SERVER: partial(push_pull, exchange=PARAMETER_SERVER),
    SWITCH: in_switch,
}
"""Executor of an exchange. ``allreduce`` is the engine's, and ``hierarchical`` wraps ``sharded`` (``exchange_group``)."""


def exchange_streams(
    streams: Sequence[tuple[Stream, Exchange]], wire: Wire, chunk_elements: int, compress_pull: bool = True
) -> None:
    """Replace the values of each stream by their sum over the workers, by the named exchange.

    The exchange processes chunks, several of which are in flight. It waits once for the checks of messages on a GPU.
    """
    chunks = (
        _with_buffers(_chunk(exchange, compress_pull), stream, start, min(start + chunk_elements, stream.count), wire)
        for stream, exchange in streams
        for start in range(0, stream.count, chunk_elements)
    )
    every = [stream for stream, _ in streams]
    run_chunks(chunks, wire, at_once=wire.joins and are_queued(every))
    settle_checks(every)


def _with_buffers(execute: ChunkExchange, stream: Stream, start: int, stop: int, wire: Wire) -> CollectiveSteps[None]:
    """Exchange one chunk. At the end all its messages are sent and read, so that another chunk may use their memory."""
    with wire.pool.lent() as buffers:
        yield from execute(stream, start, stop, wire, buffers)


def _chunk(exchange: Exchange, compress_pull: bool) -> ChunkExchange:
    """Return a generator that executes one chunk of an exchange."""
    if compress_pull or not exchange.has_pull:
        return CHUNKED[exchange]
    return partial(push_pull, exchange=exchange, compress_pull=False)


__all__ = ["CHUNKED", "allreduce", "begin_allreduce", "exchange_streams"]
