"""Sizes of one step's exchange, computed once for a workload and a gradient exchange, then cached.

They depend neither on the speed of devices and links nor on the batch. ``exchange_seconds`` turns them into seconds.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.hardware.placement import Places
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES
from paceline.prediction.exchange.collective_time import Loads, load_rows
from paceline.prediction.exchange.residual_memory import copied_elements
from paceline.prediction.passes.frozen_layers import coded_beside, frozen_beside
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.codec_place import ON_HOST
from paceline.strategy.compression.formats import FP32, PayloadBound
from paceline.strategy.exchanges import Traffic
from paceline.strategy.phase import Phase, busiest_sent
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import Prepared, once_by
from paceline.workload.table import Workload

CodecOperation = Literal["encode", "reduce", "decode"]
PassOperation = Literal["encode", "reduce", "decode", "to_host", "from_host"]

IN_FLIGHT = 2  # chunks: one at the codec, one on the network


@dataclass(frozen=True, slots=True)
class CodecPass:
    """One pass of the codec over a bucket.

    ``packed`` and ``dense``: elements in the compression's format and in fp32. ``copied``: fp32 elements that are copied
    between a device and its host, if the host runs the codec. ``gathered``: elements that a CPU copies between gradients and
    one buffer."""

    work: PassOperation
    calls: int
    packed: int
    dense: int
    copied: int = 0
    gathered: int = 0


@dataclass(frozen=True, slots=True)
class ExchangePiece:
    """One stage of a bucket's exchange without its seconds: a collective, or a pass of the codec.

    ``times``: how many times a measured stage pays its fixed cost.
    """

    name: str
    part: Literal["before", "chunked", "after"]
    what: Phase | CodecPass
    times: int


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Buckets of a workload; they do not depend on the number of workers.

    Networks are repetitive, so many buckets have equal plans.

    Attributes:
        layers: layers of each bucket, in order.
        unlike: every distinct plan once. ``frozen``: elements of frozen weights that are gathered with each of them.
            ``coded``: their bytes if they are gathered as codes; 0: they have the width of the precision.
        index: position of each bucket's plan in ``unlike``, (buckets,).
        first: lowest layer of each bucket, whose backward pass runs last, (buckets,); for local steps the lowest of all.
    """

    layers: tuple[tuple[int, ...], ...]
    unlike: tuple[BucketPlan, ...]
    frozen: tuple[int, ...]
    index: Ints
    first: Ints
    coded: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class BucketSizes(Prepared):
    """Buckets of a step's exchange. ``strategy``: the strategy of this exchange."""

    strategy: Strategy
    partition: Partition

    @property
    def count(self) -> int:
        """Number of buckets."""
        return len(self.partition.index)

    @property
    def first(self) -> Ints:
        """Lowest layer of each bucket."""
        return self.partition.first

    @cached_property
    def elements(self) -> Ints:
        """Elements of each bucket, (buckets,)."""
        return np.array([plan.elements for plan in self.partition.unlike], dtype=np.int64)[self.partition.index]

    def gathered_bytes(self, width: float) -> Array:
        """Return bytes that are gathered for each bucket, frozen weights too, (buckets,). ``width``: bytes of an element."""
        parts = self.partition
        pairs = zip(parts.frozen, parts.coded or (0,) * len(parts.frozen), strict=True)
        beside: Array = np.array([coded or width * frozen for frozen, coded in pairs])[parts.index]
        return width * self.elements + beside

    @property
    def codec_bytes(self) -> int:
        """Least bytes of the codec's buffers."""
        return 0


@dataclass(frozen=True, eq=False)
class ExchangePlan(BucketSizes):
    """All buckets of a step, and their stages as arrays.

    Attributes:
        traffic, gathering: for each distinct bucket, the exchange of its gradients and the all-gathers of its weights.
        unlike_pieces: the pieces of all distinct buckets, bucket after bucket.
        order: position of each piece of the step in ``unlike_pieces``; pieces are in the order of execution, (pieces,).
        bucket, codec, chunked: for each piece its bucket, whether it is a codec pass, and whether it is chunked, (pieces,).
        begin: index of the first piece of each bucket, (buckets,).
        largest: share of the largest chunk in each bucket, (buckets,).
        loads: link loads of the collectives among the pieces, then of the all-gathers, name after name.
        codec_passes: for each codec pass whether it encodes, calls, packed, dense, copied and gathered elements, (passes, 6).
        gathers: names of the all-gathers of a bucket.
    """

    traffic: tuple[Traffic, ...]
    gathering: tuple[tuple[Phase, ...], ...]
    unlike_pieces: tuple[ExchangePiece, ...]
    order: Ints
    bucket: Ints
    codec: Bools
    chunked: Bools
    begin: Ints
    largest: Array
    loads: Loads
    codec_passes: Array
    gathers: tuple[str, ...]

    @cached_property
    def pieces(self) -> tuple[ExchangePiece, ...]:
        """Pieces of the step, bucket after bucket."""
        return tuple(self.unlike_pieces[i] for i in self.order)

    @cached_property
    def wire_bytes(self) -> int:
        """Bytes sent in one step by the rank that sends most, on average over local steps."""
        if not self.count:
            return 0
        often = np.bincount(self.partition.index, minlength=len(self.traffic))
        sent: dict[int, Ints | int] = {}  # by the number of ranks that exchange: experts have other replicas
        for times, traffic, gathers in zip(often.tolist(), self.traffic, self.gathering, strict=True):
            for phase in (*gathers, *traffic.phases):
                sent[phase.world_size] = sent.get(phase.world_size, 0) + times * phase.sent_by_rank()
        whole = sum(int(np.max(of_ranks)) for of_ranks in sent.values()) * self.strategy.exchanges_per_step
        return self.strategy.local.per_step(whole)

    @cached_property
    def sent(self) -> Array:
        """Bytes that the busiest rank sends in each collective, (collectives,)."""
        of = [busiest_sent([p.what]) if isinstance(p.what, Phase) else 0 for p in self.unlike_pieces]
        return np.array(of, dtype=np.float64)[self.order][~self.codec]

    @cached_property
    def codec_bytes(self) -> int:
        """Bytes of the codec's buffers for the bucket that needs the most."""
        pairs = zip(self.partition.unlike, self.traffic, strict=True)
        return max((_codec_bytes(plan, traffic, self.strategy) for plan, traffic in pairs), default=0)


def plan_key(strategy: Strategy) -> Hashable:
    """Return the choices that determine a strategy's exchange: equal keys give equal plans."""
    mesh = strategy.parallelism
    return seconds_key(strategy), mesh.micro_batches if mesh.sharding.weights else 1


def seconds_key(strategy: Strategy) -> Hashable:
    """Return the choices that determine the traffic of one exchange.

    Plans of equal keys have equal seconds and bytes of memory. They differ in the number of exchanges in a step.
    """
    mesh = strategy.parallelism
    return strategy.moving, _width(strategy.precision) if mesh.sharding.scatters or mesh.gather_bits else 0


def _width(precision: str) -> int | str:
    """Return the key that equal units of several precisions share. Recipes gather weights in different ways."""
    return precision if precision in RECIPES else BYTES_PER_ELEMENT[precision]


@once_by(lambda strategy: strategy.grouping)
def _partition_of(workload: Workload, strategy: Strategy) -> Partition:
    """Return the buckets of a strategy; none for one worker without sharded weights."""
    level = strategy.parallelism.sharding
    alone = strategy.world_size == 1 and not level.weights
    frozen = frozen_beside(workload) if level.frozen and workload.frozen else {}
    groups = [] if alone else strategy.partition(workload.parameters, workload.ready_order, frozen)
    layers = tuple(tuple({p.layer for p in members}) for members, _ in groups)
    coded = coded_beside(workload) if frozen else {}
    kinds = [
        (plan, sum(frozen.get(p.name, 0) for p in members), sum(coded.get(p.name, 0) for p in members))
        for members, plan in groups
    ]
    unlike = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    index = np.array([unlike[kind] for kind in kinds], dtype=np.int64)
    plans, beside, codes = (tuple(column) for column in zip(*unlike, strict=True)) if unlike else ((), (), ())
    behind = strategy.sync_every > 1  # an exchange of local steps begins when every layer has been updated
    first = [0 if behind else min(members) for members in layers]
    return Partition(layers, plans, beside, index, np.array(first, dtype=np.int64), codes)


def bucket_sizes(workload: Workload, strategy: Strategy) -> BucketSizes:
    """Return the buckets of a strategy without their exchange."""
    return BucketSizes(strategy, _partition_of(workload, strategy))


def _determining(strategy: Strategy, places: Places, level: PayloadBound = "expected", measured: bool = False) -> Hashable:
    return plan_key(strategy), places, level if strategy.description.format.spread else "", measured


@once_by(_determining)
def exchange_plan(
    workload: Workload, strategy: Strategy, places: Places, level: PayloadBound = "expected", measured: bool = False
) -> ExchangePlan:
    """Return the plan of a strategy's exchange; it is empty for one worker.

    Args:
        level: the bound to take for payloads whose length depends on the values.
        measured: whether costs come from a calibration, which divides and checks even a dense gradient.
    """
    parts = _partition_of(workload, strategy)
    traffic = tuple(strategy.traffic(plan, level) for plan in parts.unlike)
    gathering = tuple(
        strategy.gathers(*of) for of in zip(parts.unlike, parts.frozen, parts.coded or (0,) * len(parts.frozen), strict=True)
    )
    copies = strategy.gradient_exchange.codec_at is ON_HOST  # only on a GPU: settled strategies omit their own place
    of_bucket = [
        _with_residuals(_pieces(plan, own, measured, copies), plan, strategy, measured)
        for plan, own in zip(parts.unlike, traffic, strict=True)
    ]
    flat = tuple(piece for pieces in of_bucket for piece in pieces)
    counts = np.array([len(pieces) for pieces in of_bucket], dtype=np.int64)
    each = counts[parts.index]
    begin = np.cumsum(each) - each
    order = np.repeat((np.cumsum(counts) - counts)[parts.index] - begin, each) + np.arange(int(each.sum()))
    codec = np.array([isinstance(p.what, CodecPass) for p in flat], dtype=np.bool_)
    chunked = np.array([p.part == "chunked" for p in flat], dtype=np.bool_)
    rows = load_rows([p.what if isinstance(p.what, Phase) else None for p in flat], places)[order]
    names = strategy.parallelism.sharding.gather_names if parts.layers else ()
    fetched = [load_rows([gathers[i] for gathers in gathering], places)[parts.index] for i in range(len(names))]
    codec_passes = [_codec_pass_row(piece.what) for piece in flat]
    return ExchangePlan(
        strategy,
        parts,
        traffic,
        gathering,
        flat,
        order,
        np.repeat(np.arange(len(parts.index)), each),
        codec[order],
        chunked[order],
        begin,
        np.array([own.largest for own in traffic], dtype=np.float64)[parts.index],
        Loads.of(np.concatenate([rows[~codec[order]], *fetched])),
        np.array(codec_passes, dtype=np.float64).reshape(-1, 6)[order][codec[order]],
        names,
    )


def _codec_pass_row(what: Phase | CodecPass) -> tuple[float, ...]:
    if not isinstance(what, CodecPass):
        return (0, 0, 0, 0, 0, 0)
    return (what.work == "encode", what.calls, what.packed, what.dense, what.copied, what.gathered)


def _pieces(plan: BucketPlan, t: Traffic, measured: bool, copies: bool = False) -> list[ExchangePiece]:
    """Return the pieces of one bucket: encode, collectives, decode.

    The codec adds received data after the first collective with data. With ``copies`` gradients go to the host before, and
    their sums return after.

    With measured costs each codec operation is one piece over the whole bucket and pays its fixed cost once per chunk.
    """
    chunks = max(1, t.chunks) if measured else t.chunks
    calls = max([t.chunks, *(phase.rounds for phase in t.chunked if phase.pattern == "shift")])

    def codec(work: CodecOperation) -> list[ExchangePiece]:
        packed, dense, gathered = (getattr(of, work) for of in (t.compressed, t.dense, t.copied))
        if measured:
            added = t.compressed.reduce + t.dense.reduce + t.inner.reduce
            return [
                ExchangePiece(work, "chunked", CodecPass(work, chunks, added if work == "reduce" else plan.elements, 0), chunks)
            ]
        every = CodecPass(work, calls, packed, dense, gathered=gathered)
        return [ExchangePiece(work, "chunked", every, calls)] if packed or dense else []

    pieces: list[ExchangePiece] = []
    for phase in t.before:
        pieces.append(ExchangePiece(phase.name, "before", phase, 1))
        if t.inner.reduce and phase.name == "inner_reduce" and not measured:
            pieces.append(ExchangePiece("inner_add", "before", CodecPass("reduce", 1, 0, t.inner.reduce), 1))

    def copied(way: Literal["to_host", "from_host"]) -> list[ExchangePiece]:
        return [ExchangePiece(way, "chunked", CodecPass(way, t.chunks, 0, 0, plan.elements), 1)] if copies else []

    pieces += copied("to_host")
    # FSDP's collective has no codec, even with measured costs.
    bare = t.chunked and t.chunked[0].pattern == "scatter" and not t.compressed.encode
    pieces += [] if bare else codec("encode")
    added = bool(bare)
    for phase in t.chunked:
        pieces.append(ExchangePiece(phase.name, "chunked", phase, chunks))
        if not added and phase.name != "sizes" and not phase.ring:
            pieces += codec("reduce")
            added = True
    pieces += [] if bare else codec("decode")
    pieces += copied("from_host")
    return [*pieces, *(ExchangePiece(phase.name, "after", phase, 1) for phase in t.after)]


def _with_residuals(pieces: list[ExchangePiece], plan: BucketPlan, strategy: Strategy, measured: bool) -> list[ExchangePiece]:
    """Add copies of residuals before the encoding and after it. A calibration includes them in its pieces."""
    x, count = strategy.gradient_exchange, copied_elements(plan, strategy)
    if not count or measured:
        return pieces
    converted = count if x.residual_bits != 32 else 0
    moved = -(-count * x.residual_bits // 32) if x.residuals_at else 0  # to a device from its host, and back
    fetch = ExchangePiece("fetch_residuals", "before", CodecPass("decode", 1, 0, converted, moved), 1)
    keep = ExchangePiece("keep_residuals", "after", CodecPass("encode", 1, 0, converted, moved), 1)
    first = sum(piece.part == "before" for piece in pieces)
    last = first + sum(piece.part == "chunked" for piece in pieces)
    return [*pieces[:first], fetch, *pieces[first:last], keep, *pieces[last:]]


def _scatters(strategy: Strategy, traffic: Traffic) -> bool:
    return strategy.parallelism.sharding.weights or any(phase.pattern == "scatter" for phase in traffic.phases)


def _codec_bytes(plan: BucketPlan, traffic: Traffic, strategy: Strategy) -> int:
    """Return bytes of the buffers of one bucket.

    A plain all-reduce needs none. Other exchanges copy the group and hold chunks in flight. A chunk holds the data that the
    busiest rank sends and receives, and the fp32 sum of the elements that it owns. A payload of unknown length has room for its
    longest case.
    """
    x = strategy.gradient_exchange
    if x.is_plain and _scatters(strategy, traffic):
        return 0  # shards travel in place
    if strategy.gradient_exchange.exchange.by_engine:
        sent = sum(max(phase.sizes) for phase in traffic.phases)
        return sent if sent != FP32.push_bytes(plan.elements) else 0
    chunks = -(-traffic.chunks // IN_FLIGHT) or 1
    known = strategy.description.format.spread is None
    worst = traffic.chunked if known else strategy.traffic(plan, "most").chunked
    moved = int(np.sum([phase.sent_by_rank() + phase.received_by_rank() for phase in worst], axis=0).max()) if worst else 0
    inner = sum(int(phase.received_by_rank().max()) for phase in traffic.before if not phase.ring)
    return FP32.push_bytes(plan.elements) + moved // chunks + inner
