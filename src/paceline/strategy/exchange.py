"""Exchanges, described: who sends how many bytes to whom for one group of gradients.

``allreduce`` is the engine's own. The others carry encoded messages of at most ``CHUNK_ELEMENTS`` elements, one exchange a
chunk, pipelined: ``sharded`` and ``parameter_server`` push to the owner of a shard, which adds, and pull the sum: every worker
owns one, or only the ``servers`` among them, which are spread evenly over the ranks and so over the nodes; ``ring`` is
Li et al. 2018, Algorithm 1: partial sums are encoded anew at every hop; ``allgather`` sends everything to everyone;
``hierarchical`` is dense inside a node, in equal shares padded with zeros, and ``sharded`` between ranks of equal local
number; ``switch`` sends each gradient once to a switch that adds, and the sum once to each (Sapio et al. 2021, SwitchML, NSDI;
Graham et al. 2016, SHARP, COMHPC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from paceline.strategy.buckets import BucketPlan
from paceline.strategy.compression import Compression
from paceline.strategy.formats import FP32, Format
from paceline.strategy.phase import Pattern, Phase

CHUNK_ELEMENTS = 1 << 21  # 8 MiB of fp32: far above what a call of codec and engine costs, a third of DDP's bucket
SWITCH_CHUNK = 1 << 17  # elements, through a switch: sums come down while later chunks go up
SHARD_ALIGN = 64  # elements: shards begin on whole blocks of the ternary format
SIZE_BYTES = 8  # in front of a message whose length depends on the values
FLAGS = 1  # fp32 flag beside the scalers: a gradient is NaN or infinite

EXCHANGES = ("allreduce", "sharded", "parameter_server", "ring", "allgather", "hierarchical", "switch")
OF_HOSTS = tuple(name for name in EXCHANGES if name != "switch")
"""Exchanges that need no more than hosts and links."""
ONE_WAY = ("sharded", "parameter_server", "hierarchical")
"""Exchanges whose pull can travel uncompressed."""


@dataclass(frozen=True, slots=True)
class CodecWork:
    """fp32 elements that go through the codec on the busiest rank: encoded, decoded and added, decoded."""

    encode: int = 0
    reduce: int = 0
    decode: int = 0

    def plus(self, other: CodecWork, times: int = 1) -> CodecWork:
        """The sum with ``times`` another."""
        return CodecWork(
            self.encode + times * other.encode, self.reduce + times * other.reduce, self.decode + times * other.decode
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """The exchange of one group of gradients: collectives in order, and the codec's work.

    Attributes:
        before, after: collectives of the whole group in front of and behind its chunks.
        chunked: those of the chunks, all chunks together; codec and network work on different chunks at once.
        compressed, dense: work of the compression's codec and of that of uncompressed numbers; ``inner``: adding inside a node.
        chunks: how many; ``largest``: share of the elements in the largest, which cannot overlap itself.
        copied: elements that a rank copies from its gradients into one buffer before it encodes, and back after it has added or
            decoded, where the codec is on a CPU.
    """

    before: tuple[Phase, ...]
    chunked: tuple[Phase, ...]
    after: tuple[Phase, ...]
    compressed: CodecWork
    dense: CodecWork
    inner: CodecWork
    chunks: int
    largest: float
    copied: CodecWork = CodecWork()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All collectives."""
        return self.before + self.chunked + self.after


def carrier(exchange: str, coded: bool) -> str:
    """The exchange of a stream: what stays dense beside an all-gather travels ``sharded``, at 2 (N-1)/N of its bytes."""
    return exchange if coded or exchange != "allgather" else "sharded"


MOST_WORKERS = {"allreduce": 1 << 20, "ring": 1 << 12, "hierarchical": 1 << 14}
"""Workers that an exchange is described for; others than these for ``MOST_OTHERS``. Every worker's bytes are counted by
themselves, except in an all-reduce, where all send the same; a ring's and a hierarchy's grow with the square of the workers."""
MOST_OTHERS = 1 << 16


def shard_bounds(count: int, exchange: str, world_size: int, servers: int = 1) -> list[tuple[int, int]]:
    """``(start, stop)`` of the elements that each rank owns; in whole blocks, the last ones possibly short or empty.

    Of a ``parameter_server`` rank ``i N // M`` is server i of M; the others own nothing.
    """
    owners = servers if exchange == "parameter_server" else world_size
    chunk = -(-count // (owners * SHARD_ALIGN)) * SHARD_ALIGN
    owned = [((rank + 1) * owners - 1) // world_size + 1 for rank in range(-1, world_size)]  # shards up to each rank
    return [(min(before * chunk, count), min(now * chunk, count)) for before, now in pairwise(owned)]


def chunk_elements(exchange: str) -> int:
    """Elements of a chunk of an exchange."""
    return SWITCH_CHUNK if exchange == "switch" else CHUNK_ELEMENTS


def chunk_bounds(count: int) -> list[tuple[int, int]]:
    """``(start, stop)`` of the chunks of a stream: ``CHUNK_ELEMENTS`` each, the last one possibly short."""
    return [(start, min(start + CHUNK_ELEMENTS, count)) for start in range(0, count, CHUNK_ELEMENTS)]


def column_bounds(columns: int, rows: int) -> list[tuple[int, int]]:
    """``(start, stop)`` of the columns of each chunk of a matrix with a row for each owner: ``CHUNK_ELEMENTS`` at most in all
    rows together, in whole blocks."""
    size = max(1, CHUNK_ELEMENTS // (rows * SHARD_ALIGN)) * SHARD_ALIGN
    return [(start, min(start + size, columns)) for start in range(0, columns, size)]


def phases(plan: BucketPlan, compression: Compression, exchange: str, world_size: int) -> list[Phase]:
    """The collectives of one group over a flat cluster, in order. See ``describe``."""
    return list(describe(plan, compression, exchange, world_size).phases)


def describe(
    plan: BucketPlan,
    compression: Compression,
    exchange: str,
    world_size: int,
    ranks_per_node: int = 1,
    compress_pull: bool = True,
    servers: int = 1,
    in_card: bool = False,
    dense: Format = FP32,
) -> Traffic:
    """Everything that the ranks send each other for one group, and what the codec works.

    Args:
        compression: configured, so that its format is that of its options.
        ranks_per_node: for ``hierarchical``; divides ``world_size``.
        compress_pull: whether sums return encoded; for the exchanges of ``ONE_WAY``.
        servers: workers that own shards, of ``parameter_server``.
        in_card: whether network cards are the codec: hosts exchange fp32, which the cards compress where it leaves a node.
        dense: format of what the codec does not encode.
    """
    if exchange == "allreduce":
        return _allreduce(plan, compression, world_size, dense)
    local = ranks_per_node if exchange == "hierarchical" else 1
    members = world_size // local
    streams = plan.streams(compression, dense)
    chunked: dict[tuple[str, Pattern], _Lane] = {}
    work = {True: CodecWork(), False: CodecWork()}  # by whether it is the compression's
    chunks, largest, inner_own = 0, 0, 0
    inner = np.zeros((members, local), dtype=np.int64)
    for fmt, count in streams:
        parts = [count] if local == 1 else [stop - start for start, stop in shard_bounds(count, "sharded", local)]
        inner += dense.push_bytes(parts[0])  # equal shares, as the engine's collectives need them: the last ones are padded
        inner_own += parts[0]
        if members == 1 and local > 1:  # one node: nothing is encoded
            continue
        stream_carrier = carrier(exchange, fmt == compression.format)
        of_codec = fmt == compression.format and not in_card
        sent_as = replace(fmt, in_card=True) if in_card and fmt != FP32 else fmt
        back = None if compress_pull else dense
        columns = [_stream(part, sent_as, stream_carrier, members, back, servers) for part in parts]
        by_hosts = _stream(parts[0], FP32, stream_carrier, members, back, servers) if in_card else None
        for position, lane in enumerate(columns[0].lanes):
            every = [column.lanes[position] for column in columns]
            sizes = np.stack([x.sizes for x in every], axis=1).reshape(-1)  # node-major: equal local ranks are a stride apart
            plain = by_hosts.lanes[position].sizes if by_hosts else lane.plain
            joined = _Lane(lane.name, lane.pattern, sizes, max(x.rounds for x in every), plain, lane.back)
            before = chunked.get(lane.key)
            chunked[lane.key] = joined if before is None else before.plus(joined)
        codec = of_codec and fmt != FP32
        work[codec] = work[codec].plus(columns[0].passes)
        work[False] = work[False].plus(columns[0].fp32)
        chunks += columns[0].chunks
        largest = max(largest, min(parts[0], chunk_elements(exchange)))
    between = tuple(_phase(lane, world_size, members, local) for lane in chunked.values())
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
    copied = CodecWork(rest, reduce=rest) if exchange == "allgather" else CodecWork(rest, decode=rest)
    return Traffic(reduce + shared, between, gather, work[True], work[False], adding, chunks, share, copied)


def codes_in_place(compression: Compression, compress_pull: bool, members_of_node: int) -> bool:
    """Whether a CPU codes gradients where they lie. Sums that come back as fp32, and those of a node, are in one buffer.

    Args:
        members_of_node: ranks that add up before anything is encoded; 1 for exchanges without a part inside the node.
    """
    return compression.in_place and compress_pull and members_of_node == 1


def _allreduce(plan: BucketPlan, compression: Compression, world_size: int, dense: Format) -> Traffic:
    """In place, bucket by bucket, without headers. Low-rank: the flag, then the dense part, then the two factors."""
    parts = [("allreduce", compression.format.push_bytes(plan.elements))]
    if compression.low_rank:
        counts = {"allreduce": plan.dense, "factor_p": plan.factors[0], "factor_q": plan.factors[1]}
        parts = [(name, dense.push_bytes(count)) for name, count in counts.items()]
    work = CodecWork() if compression.format == FP32 else CodecWork(encode=plan.compressed, decode=plan.compressed)
    collectives = tuple(Phase(name, (size,), world_size) for name, size in parts if size)
    shared = (Phase("scales", (4 * FLAGS,), world_size),) if compression.low_rank else ()
    return Traffic(shared, collectives, (), work, CodecWork(), CodecWork(), 1, 1.0)


_Sizes = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
_NONE: _Sizes = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Lane:
    """One kind of collective among the members of a group; ``sizes`` of each member. ``plain``, ``back``: as of a ``Phase``."""

    name: str
    pattern: Pattern
    sizes: _Sizes
    rounds: int
    plain: _Sizes = field(default_factory=lambda: _NONE)
    back: _Sizes = field(default_factory=lambda: _NONE)

    @property
    def key(self) -> tuple[str, Pattern]:
        return self.name, self.pattern

    def plus(self, other: _Lane, times: int = 1) -> _Lane:
        return _Lane(
            self.name,
            self.pattern,
            self.sizes + times * other.sizes,
            self.rounds + times * other.rounds,
            self.plain + times * other.plain,
            self.back + times * other.back,
        )


def _phase(lane: _Lane, world_size: int, members: int, stride: int) -> Phase:
    """A lane of all ranks as a phase."""
    sizes, plain, back = (tuple(of.tolist()) for of in (lane.sizes, lane.plain, lane.back))
    return Phase(lane.name, sizes, world_size, lane.pattern, members, stride, lane.rounds, plain, back)


@dataclass(frozen=True, slots=True)
class _Column:
    """A stream among the members of a group. ``passes`` through its format's codec, ``fp32`` through the fp32 one."""

    lanes: tuple[_Lane, ...]
    passes: CodecWork
    fp32: CodecWork
    chunks: int


def _stream(count: int, fmt: Format, exchange: str, members: int, back: Format | None, servers: int) -> _Column:
    """All chunks of a stream: whole ones and a short last one. ``back``: format of sums that return uncompressed."""
    size = chunk_elements(exchange)
    whole, rest = divmod(count, size)
    last = _chunk(rest, fmt, exchange, members, back, servers)
    if not whole:
        return last
    full = _chunk(size, fmt, exchange, members, back, servers)
    lanes = tuple(a.plus(b, whole) for a, b in zip(last.lanes, full.lanes, strict=True))
    return _Column(lanes, last.passes.plus(full.passes, whole), last.fp32.plus(full.fp32, whole), last.chunks + whole)


@lru_cache(maxsize=4096)
def _chunk(count: int, fmt: Format, exchange: str, members: int, back: Format | None, servers: int) -> _Column:
    """One chunk. Formats of unknown length tell the sizes of their messages first, between the same ranks."""
    make = {"ring": _ring, "allgather": _allgather, "switch": _switch}.get(exchange)
    if make is None:
        lanes, passes, fp32 = _push_pull(count, fmt, exchange, members, back, servers)
    else:
        lanes, passes, fp32 = make(count, fmt, members)
    if not count:
        lanes = [replace(x, rounds=0) for x in lanes]
    return _Column(tuple(lanes), passes, fp32, int(count > 0))


_ChunkTraffic = tuple[list[_Lane], CodecWork, CodecWork]


def _lanes(name: str, pattern: Pattern, sizes: Iterable[int], messages: Iterable[int], fmt: Format, rounds: int) -> list[_Lane]:
    """A collective, behind the sizes of its ``messages`` (of each member) where the format needs them."""
    payload = [_Lane(name, pattern, np.asarray(list(sizes), dtype=np.int64), rounds)]
    if not fmt.tells_sizes:
        return payload
    message_sizes = SIZE_BYTES * np.asarray(list(messages), dtype=np.int64)
    return [_Lane("sizes", pattern, message_sizes, rounds), *payload]


def message_bytes(size: int, fmt: Format, contributions: int = 1) -> int:
    """Of one message: as fp32 where a format that does not add up exactly would take more, as for a single element.

    Of a format whose length depends on the values, its own length: those are estimates anyway.
    """
    own = fmt.message_bytes(size, contributions)
    return own if fmt.grows or fmt.tells_sizes else min(own, FP32.message_bytes(size))


def _messages(sizes: Iterable[int], fmt: Format, contributions: int = 1) -> list[int]:
    """Message bytes of each size; most sizes are equal, and each is worked out once."""
    known: dict[int, int] = {}
    lengths = []
    for size in sizes:
        if size not in known:
            known[size] = message_bytes(size, fmt, contributions)
        lengths.append(known[size])
    return lengths


def _push_pull(count: int, fmt: Format, exchange: str, n: int, uncompressed: Format | None, servers: int) -> _ChunkTraffic:
    """To the owners and back. An owner's own part stays with it."""
    owned = [stop - start for start, stop in shard_bounds(count, exchange, n, servers)]
    back = uncompressed or fmt
    messages = [int(size > 0) for size in owned]
    lanes = [
        *_lanes("push", "push", _messages(owned, fmt), messages, fmt, 1),
        *_lanes("pull", "pull", _messages(owned, back, n), messages, back, 1),
    ]
    out, into = CodecWork(encode=count, reduce=owned[0] * n), CodecWork(encode=owned[0], decode=count)
    return (lanes, out.plus(into), CodecWork()) if uncompressed is None else (lanes, out, into)


def _ring(count: int, fmt: Format, n: int) -> _ChunkTraffic:
    """Rank r sends block r - s + 1 at hop s, a sum of s contributions; it ends with block r + 1 and passes all but r + 2 on."""
    blocks = np.array([stop - start for start, stop in shard_bounds(count, "sharded", n)], dtype=np.int64)
    hops = np.arange(1, n)
    at = (np.arange(n)[:, None] - hops[None, :] + 1) % n  # rank, hop -> block
    lengths = _lengths(blocks, fmt)
    table = np.stack([lengths(s) for s in range(1, n)]) if n > 1 else np.zeros((0, n), np.int64)
    sent = table[hops[None, :] - 1, at].sum(axis=1) if n > 1 else np.zeros(n, np.int64)
    final = lengths(n)
    passed = final.sum() - np.roll(final, -2) if n > 1 else np.zeros(n, np.int64)
    filled = (blocks > 0).astype(np.int64)
    messages = filled[at].sum(axis=1), filled.sum() - np.roll(filled, -2) if n > 1 else filled * 0
    lanes = [
        *_lanes("reduce_scatter", "shift", sent, messages[0], fmt, n - 1),
        *_lanes("all_gather", "shift", passed, messages[1], fmt, n - 1),
    ]
    block = int(blocks[0])
    return lanes, CodecWork(encode=block * n, reduce=block * (n - 1), decode=block * n), CodecWork()


def _lengths(
    blocks: np.ndarray[tuple[int, ...], np.dtype[np.int64]], fmt: Format
) -> Callable[[int], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Message bytes of each block as a sum of k contributions; computed once for each width."""
    known: dict[float, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}

    def of(k: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        width = fmt.pull_bits(k)
        if width not in known:
            known[width] = np.array(_messages(blocks.tolist(), fmt, k), dtype=np.int64)
        return known[width]

    return of


def _allgather(count: int, fmt: Format, n: int) -> _ChunkTraffic:
    """The whole chunk to all others; each adds N of them up in rank order."""
    lanes = _lanes("all_gather", "pull", [message_bytes(count, fmt)] * n, [int(count > 0)] * n, fmt, 1)
    return lanes, CodecWork(encode=count, reduce=count * n), CodecWork()


def _switch(count: int, fmt: Format, n: int) -> _ChunkTraffic:
    """Every rank's chunk to the switch, and the sum of N contributions to every rank, both at once."""
    up, down = (np.full(n, message_bytes(count, fmt, times), dtype=np.int64) for times in (1, n))
    lanes = [_Lane("aggregate", "switch", up, 1, back=down)]
    return lanes, CodecWork(encode=count, decode=count), CodecWork()
