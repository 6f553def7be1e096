"""Descriptions of exchanges of sharded units: traffic from the ranks to the owners of a unit's shards.

The engine's reduce-scatter (``allreduce``) carries dense gradients and bfloat16. ``sharded`` pushes encoded rows to their
owners; ``ring`` encodes partial sums at every hop; ``hierarchical`` is dense inside a node and pushes encoded rows between
nodes (Wang et al. 2023, ZeRO++, arXiv 2306.10209, section 3.3). With copies of the shards (HSDP) the engine reduces within a
group, and the exchange runs between the copies. ``training/attach/shards/unit_exchange.py`` executes it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from paceline.errors import UserError
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.codec_place import IN_CARD
from paceline.strategy.compression.compression import Compression
from paceline.strategy.compression.formats import FP32, Format
from paceline.strategy.dense_bits import dense_format
from paceline.strategy.exchanges import (
    EXCHANGES,
    FLAGS,
    ChunkedExchange,
    CodecWork,
    Exchange,
    Traffic,
    carriers,
    column_bounds,
)
from paceline.strategy.exchanges.exchange import OwnerLane
from paceline.strategy.gradient_exchange import GradientExchange
from paceline.strategy.phase import Pattern, Phase

TO_OWNERS = tuple(name for name, exchange in EXCHANGES.items() if exchange.reduces_to_owners)
"""Names of the exchanges with a reduce-scatter."""


def usual_exchange(compression: Compression, to_owners: bool) -> Exchange:
    """Return the default exchange of a compression.

    If gradients are reduced ``to_owners``, this is the first exchange with a reduce-scatter; ``powersgd`` has none.
    """
    able = carriers(compression)
    return next((exchange for exchange in able if exchange.reduces_to_owners or not to_owners), able[0])


def check_to_owners(exchange: GradientExchange, replicated: bool, owners: int) -> None:
    """Raise UserError for an exchange that does not reduce gradients to the owners of shards.

    Args:
        replicated: True if the exchange runs between copies of the shards (HSDP).
        owners: number of ranks that shard a unit.
    """
    if exchange.description.low_rank:
        raise UserError(
            f"{exchange.compression} works on whole matrices, and no rank of a sharded model owns one",
            "take another compression, or sharding ddp",
        )
    if exchange.codec_at is IN_CARD or exchange.exchange.uses_switch:
        raise UserError("cards and switches do not take part in FSDP2's exchanges", "leave codec_at and switch out")
    if replicated:
        if exchange.exchange.uses_nodes:
            raise UserError(
                "a mesh with replicas is a hierarchy: FSDP2 reduces in the group, the exchange runs between the replicas",
                "name exchange sharded, ring or allgather",
            )
        return
    if not exchange.exchange.reduces_to_owners:
        name = exchange.exchange.name
        raise UserError(
            f"exchange {name!r} has no reduce-scatter: the owner of a shard is the only one that needs its sum",
            f"legal where gradients are shared out: {', '.join(TO_OWNERS)}",
        )
    if not exchange.compress_pull:
        raise UserError("a reduce-scatter has no pull to send as fp32", "leave compress_pull out; weights have gather_bits")
    if owners % exchange.ranks_per_node:
        raise UserError(
            f"{owners} owners in nodes of {exchange.ranks_per_node}", "hierarchical needs equal nodes: set ranks_per_node"
        )


def describe_unit(
    plan: BucketPlan, x: GradientExchange, compression: Compression, precision: str, world_size: int, members: int = 0
) -> Traffic:
    """Return the traffic between the ranks for the gradients of one unit, and the codec's work.

    Args:
        compression: compression with its options.
        precision: precision of the gradients that the engine reduces.
        members: number of neighbouring ranks that shard one copy; 0: all.
    """
    owners = members or world_size
    if owners < world_size:
        return _between_copies(plan, x, compression, precision, world_size, owners)
    block = compression.format.block
    columns, rest = plan.encoded_shard(owners, block), dense_format(x.dense_bits)
    if not isinstance(x.exchange, ChunkedExchange):  # bfloat16 by the engine: FSDP2 reduces dense gradients
        size = owners * compression.format.push_bytes(sum(columns))
        passes = CodecWork(encode=owners * sum(columns), decode=sum(columns))
        return Traffic(
            (), (Phase("reduce_scatter", (size,), world_size, "scatter"),), (), passes, CodecWork(), CodecWork(), 1, 1.0
        )
    local = x.ranks_per_node
    rows, real = owners // local, sum(plan.shard(owners))
    before: tuple[Phase, ...] = ()
    adding = CodecWork()
    if local > 1:
        before = (Phase("inner_reduce", (rest.push_bytes(rows * real),), world_size, "push", local),)
        adding = CodecWork(reduce=rows * real * local)
    if rows == 1:
        return Traffic(before, (), (), CodecWork(), CodecWork(), adding, 0, 1.0)
    if compression.lossy and columns[0]:
        scales = 4 * ((plan.tensors if compression.shares_scale else 0) + FLAGS)
        before += (Phase("scales", (scales,), world_size),)
    lanes: dict[tuple[str, Pattern], tuple[int, int]] = {}
    chunks = largest = 0
    for fmt, count in ((compression.format, columns[0]), (rest, columns[1])):
        for start, stop in column_bounds(count, rows, fmt.block):
            chunks, largest = chunks + 1, max(largest, stop - start)
            for key, size, rounds in _chunk(stop - start, fmt, x.exchange, rows):
                sent, turns = lanes.get(key, (0, 0))
                lanes[key] = sent + size, turns + rounds
    chunked = tuple(
        Phase(name, (size,), world_size, pattern, rows, local, turns) for (name, pattern), (size, turns) in lanes.items()
    )
    work = [CodecWork(encode=rows * count, reduce=rows * count) for count in columns]
    packed, dense = (work[0], work[1]) if compression.format != FP32 else (CodecWork(), work[0].plus(work[1]))
    copied = CodecWork(encode=rows * real, reduce=real)
    return Traffic(before, chunked, (), packed, dense, adding, chunks, largest / max(1, sum(columns)), copied)


@lru_cache(maxsize=4096)
def _chunk(count: int, fmt: Format, exchange: ChunkedExchange, rows: int) -> list[OwnerLane]:
    """Return the collectives for ``count`` columns of a unit."""
    return exchange.owner_chunk(count, fmt, rows)


def _between_copies(
    plan: BucketPlan, x: GradientExchange, compression: Compression, precision: str, world_size: int, owners: int
) -> Traffic:
    """Return the traffic of HSDP: the engine reduces in a group, then the exchange runs between copies."""
    columns, copies = plan.encoded_shard(owners, compression.format.block), world_size // owners
    whole = int(min(BYTES_PER_ELEMENT[precision], x.dense_bits / 8) * owners * sum(plan.shard(owners)))
    inner = Phase("inner_reduce", (whole,), world_size, "scatter", owners)
    shard = BucketPlan(columns[0], plan.tensors if columns[0] else 0, columns[1])
    rest = dense_format(x.dense_bits)
    between = x.exchange.describe(shard, compression, copies, compress_pull=x.compress_pull, servers=x.servers, dense=rest)
    spread = _spread(between, copies, owners)
    return replace(spread, before=(inner, *spread.before))


def describe_between_workers(
    plan: BucketPlan, x: GradientExchange, compression: Compression, workers: int, devices: int, owners: int
) -> Traffic:
    """Return the traffic of a fragment's pseudo-gradients between the workers of local steps.

    Each device exchanges its part of the worker's shards with the same part of the other workers. Devices of a worker with
    equal shards divide them, and gather the means.

    Args:
        devices: devices of a worker.
        owners: devices that shard one copy.
    """
    copies, rest = devices // owners, dense_format(x.dense_bits)
    columns = plan.encoded_shard(owners, compression.format.block, copies)
    part = BucketPlan(columns[0], plan.tensors if columns[0] else 0, columns[1])
    between = x.exchange.describe(part, compression, workers, compress_pull=x.compress_pull, servers=x.servers, dense=rest)
    spread = _spread(between, workers, devices)
    if copies == 1:
        return spread
    gathered = FP32.push_bytes(copies * sum(plan.shard(owners, copies)))
    within = Phase("worker_gather", (gathered,), workers * devices, "gather", copies, owners)
    return replace(spread, after=(*spread.after, within))


def _spread(between: Traffic, copies: int, owners: int) -> Traffic:
    """Return an exchange of ``copies`` ranks as one between ranks that are ``owners`` apart."""

    def spread(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        return tuple(
            replace(
                phase,
                sizes=tuple(size for size in phase.sizes for _ in range(owners)) if len(phase.sizes) > 1 else phase.sizes,
                world_size=copies * owners,
                members=copies,
                stride=owners,
            )
            for phase in phases
        )

    return replace(between, before=spread(between.before), chunked=spread(between.chunked), after=spread(between.after))
