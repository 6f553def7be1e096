"""Exchanges of shared-out units, described: what the ranks send to the owners of a unit's parts.

The engine's reduce-scatter (``allreduce``) carries dense gradients and bfloat16. ``sharded`` pushes encoded rows to their
owners; ``ring`` encodes partial sums at every hop; ``hierarchical`` is dense inside a node and pushes between nodes (Wang et
al. 2023, ZeRO++, arXiv 2306.10209, section 3.3). Where groups of ranks hold copies of the shards (HSDP) the engine reduces
within a group, and the exchange runs between the copies. ``training/attach/shards/unit_exchange.py`` executes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from paceline.errors import UserError
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.compression import COMPRESSIONS, Compression
from paceline.strategy.dense_bits import dense_format
from paceline.strategy.exchange import FLAGS, SIZE_BYTES, CodecWork, Traffic, column_bounds, describe, message_bytes
from paceline.strategy.formats import FP32, Format
from paceline.strategy.gradient_exchange import GradientExchange
from paceline.strategy.phase import Pattern, Phase

TO_OWNERS = ("allreduce", "sharded", "ring", "hierarchical")
"""Exchanges that have a reduce-scatter."""


def usual_exchange(compression: str, to_owners: bool) -> str:
    """The exchange of a compression where nobody names one: its default.

    Where gradients are reduced ``to_owners`` it is the first that has a reduce-scatter; ``powersgd`` has none.
    """
    carriers = COMPRESSIONS[compression].exchanges
    return next((name for name in carriers if name in TO_OWNERS or not to_owners), carriers[0])


def check_to_owners(exchange: GradientExchange, replicated: bool, owners: int) -> None:
    """Raises UserError for an exchange that does not reduce to owners.

    Args:
        replicated: whether there are copies of the shards (HSDP), between which the exchange runs.
        owners: ranks that share a unit out.
    """
    name = exchange.exchange
    if exchange.description.low_rank:
        raise UserError(
            f"{exchange.compression} works on whole matrices, and no rank of a sharded model owns one",
            "take another compression, or sharding ddp",
        )
    if exchange.codec_at == "nic" or name == "switch":
        raise UserError("cards and switches do not take part in FSDP2's exchanges", "leave codec_at and switch out")
    if replicated:
        if name == "hierarchical":
            raise UserError(
                "a mesh with replicas is a hierarchy: FSDP2 reduces in the group, the exchange runs between the replicas",
                "name exchange sharded, ring or allgather",
            )
        return
    if name not in TO_OWNERS:
        raise UserError(
            f"exchange {name!r} has no reduce-scatter: the owner of a shard is the only one that needs its sum",
            f"legal where gradients are shared out: {', '.join(TO_OWNERS)}",
        )
    if not exchange.compress_pull:
        raise UserError("a reduce-scatter has no pull to send as fp32", "leave compress_pull out; weights have gather_bits")
    if name == "hierarchical" and owners % exchange.ranks_per_node:
        raise UserError(
            f"{owners} owners in nodes of {exchange.ranks_per_node}", "hierarchical needs equal nodes: set ranks_per_node"
        )


def describe_unit(
    plan: BucketPlan, x: GradientExchange, compression: Compression, precision: str, world_size: int, members: int = 0
) -> Traffic:
    """Everything that the ranks send each other for the gradients of one unit, and what the codec works.

    Args:
        compression: that of ``x``, configured.
        precision: of the gradients that the engine reduces.
        members: neighbours that share out one copy; 0: all.
    """
    owners = members or world_size
    if owners < world_size:
        return _between_copies(plan, x, compression, precision, world_size, owners)
    columns, rest = plan.shard(owners), dense_format(x.dense_bits)
    if x.exchange == "allreduce":  # of bfloat16: dense is FSDP2's own
        size = owners * compression.format.push_bytes(sum(columns))
        passes = CodecWork(encode=owners * sum(columns), decode=sum(columns))
        return Traffic(
            (), (Phase("reduce_scatter", (size,), world_size, "scatter"),), (), passes, CodecWork(), CodecWork(), 1, 1.0
        )
    local = x.ranks_per_node if x.exchange == "hierarchical" else 1
    rows = owners // local
    before: tuple[Phase, ...] = ()
    adding = CodecWork()
    if local > 1:
        before = (Phase("inner_reduce", (rest.push_bytes(rows * sum(columns)),), world_size, "push", local),)
        adding = CodecWork(reduce=rows * sum(columns) * local)
    if rows == 1:
        return Traffic(before, (), (), CodecWork(), CodecWork(), adding, 0, 1.0)
    if compression.lossy and columns[0]:
        scales = 4 * ((plan.tensors if compression.shares_scale else 0) + FLAGS)
        before += (Phase("scales", (scales,), world_size),)
    lanes: dict[tuple[str, Pattern], tuple[int, int]] = {}
    chunks = largest = 0
    for fmt, count in ((compression.format, columns[0]), (rest, columns[1])):
        for start, stop in column_bounds(count, rows):
            chunks, largest = chunks + 1, max(largest, stop - start)
            for key, size, rounds in _chunk(stop - start, fmt, x.exchange, rows):
                sent, turns = lanes.get(key, (0, 0))
                lanes[key] = sent + size, turns + rounds
    chunked = tuple(
        Phase(name, (size,), world_size, pattern, rows, local, turns) for (name, pattern), (size, turns) in lanes.items()
    )
    work = [CodecWork(encode=rows * count, reduce=rows * count) for count in columns]
    packed, dense = (work[0], work[1]) if compression.format != FP32 else (CodecWork(), work[0].plus(work[1]))
    copied = CodecWork(encode=rows * sum(columns), reduce=sum(columns))
    return Traffic(before, chunked, (), packed, dense, adding, chunks, largest / max(1, sum(columns)), copied)


@lru_cache(maxsize=4096)
def _chunk(count: int, fmt: Format, exchange: str, rows: int) -> list[tuple[tuple[str, Pattern], int, int]]:
    """Collectives of ``count`` columns: name and pattern, bytes as of a ``Phase``, rounds."""
    if exchange == "ring":
        hops = Counter(fmt.pull_bits(hop) for hop in range(1, rows))  # sums of as many bits have messages of one length
        first = {fmt.pull_bits(hop): hop for hop in range(rows - 1, 0, -1)}
        sent = sum(times * message_bytes(count, fmt, first[width]) for width, times in hops.items())
        own: list[tuple[tuple[str, Pattern], int, int]] = [(("reduce_scatter", "shift"), sent, rows - 1)]
        sizes: tuple[tuple[str, Pattern], int, int] = (("sizes", "shift"), SIZE_BYTES * (rows - 1), rows - 1)
    else:
        own = [(("push", "push"), message_bytes(count, fmt), 1)]
        sizes = (("sizes", "push"), SIZE_BYTES, 1)
    return [sizes, *own] if fmt.tells_sizes else own


def _between_copies(
    plan: BucketPlan, x: GradientExchange, compression: Compression, precision: str, world_size: int, owners: int
) -> Traffic:
    """HSDP: the engine's reduce-scatter among the owners, then the exchange of each shard between its copies."""
    columns, copies = plan.shard(owners), world_size // owners
    whole = int(min(BYTES_PER_ELEMENT[precision], x.dense_bits / 8) * owners * sum(columns))
    inner = Phase("inner_reduce", (whole,), world_size, "scatter", owners)
    shard = BucketPlan(columns[0], plan.tensors, columns[1])
    rest = dense_format(x.dense_bits)
    between = describe(shard, compression, x.exchange, copies, compress_pull=x.compress_pull, servers=x.servers, dense=rest)

    def spread(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        return tuple(
            replace(
                phase,
                sizes=tuple(size for size in phase.sizes for _ in range(owners)) if len(phase.sizes) > 1 else phase.sizes,
                world_size=world_size,
                members=copies,
                stride=owners,
            )
            for phase in phases
        )

    return replace(
        between,
        before=(inner, *spread(between.before)),
        chunked=spread(between.chunked),
        after=spread(between.after),
    )
