"""What is exchanged in one step, as numbers: made once for a workload and a way of exchanging, kept for the next prediction.

Nothing here depends on how fast a device or a link is, nor on the batch: those only multiply the numbers (``costs``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.prediction.network import Loads, loads
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.exchange import Traffic
from paceline.strategy.formats import FP32, Level
from paceline.strategy.phase import Phase, busiest_sent
from paceline.strategy.sharding import SHARDINGS, block
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import Workload

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Work = Literal["encode", "reduce", "decode"]
T = TypeVar("T")

IN_FLIGHT = 2  # chunks: one at the codec, one on the network
_MADE: dict[int, dict[Hashable, Any]] = {}


def kept(workload: Workload, key: Hashable, make: Callable[[], T]) -> T:
    """``make()``, once for this workload and key, as long as the workload lives."""
    store = _MADE.get(id(workload))
    if store is None:  # by identity: to hash a table of layers would take longer than a prediction
        store = _MADE[id(workload)] = {}
        weakref.finalize(workload, _MADE.pop, id(workload), None)
    if key not in store:
        store[key] = make()
    found: T = store[key]
    return found


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients exchanged together: ``layers`` are those whose backward passes make them."""

    layers: tuple[int, ...]
    plan: BucketPlan
    traffic: Traffic
    gathers: tuple[Phase, ...] = ()

    @property
    def elements(self) -> int:
        """Elements of all its gradients."""
        return self.plan.elements

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All collectives of its gradients, in order."""
        return self.traffic.phases


@dataclass(frozen=True, slots=True)
class Job:
    """One pass of the codec over a bucket: elements of the compression's format and of fp32."""

    work: Work
    calls: int
    packed: int
    dense: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One stage of a bucket's exchange before it is priced: a collective, or a pass of the codec.

    ``times``: how often its fixed cost is paid, by measurement.
    """

    name: str
    part: Literal["before", "chunked", "after"]
    what: Phase | Job
    times: int


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """All buckets of a step, and their stages as arrays.

    Attributes:
        strategy: whose exchange it is.
        pieces: of each bucket in turn, in the order in which they follow each other; ``bucket``, ``codec`` and ``chunked`` of
            each, ``begin`` of each bucket.
        first: the lowest layer of each bucket, whose backward pass comes last. ``largest``: its share of the largest chunk.
        loads: of the pieces that are collectives, then of the gathers, bucket by bucket for each name.
        jobs: of the pieces that are the codec's: whether it encodes, calls, packed and dense elements.
        gathers: names of the all-gathers of each bucket.
    """

    strategy: Strategy
    buckets: tuple[Bucket, ...]
    pieces: tuple[Piece, ...]
    bucket: Ints
    codec: NDArray[np.bool_]
    chunked: NDArray[np.bool_]
    begin: Ints
    first: Ints
    largest: Array
    loads: Loads
    jobs: Array
    gathers: tuple[str, ...]

    @cached_property
    def wire_bytes(self) -> int:
        """Bytes sent in one step by the rank that sends most."""
        phases = [phase for bucket in self.buckets for phase in (*bucket.gathers, *bucket.phases)]
        return busiest_sent(phases) * self.strategy.exchanges_per_step

    @cached_property
    def sent(self) -> Array:
        """Bytes that the busiest rank sends in each piece that is a collective."""
        return np.array([busiest_sent([p.what]) for p in self.pieces if isinstance(p.what, Phase)], dtype=np.float64)

    @cached_property
    def codec_bytes(self) -> int:
        """Bytes of the codec's buffers for the bucket that needs most."""
        unlike = {bucket.plan: bucket for bucket in self.buckets}
        return max((_codec_bytes(bucket, self.strategy) for bucket in unlike.values()), default=0)


def exchange_plan(
    workload: Workload, strategy: Strategy, devices_per_node: int, level: Level = "expected", measured: bool = False
) -> ExchangePlan:
    """The plan of a strategy's exchange; nothing for one worker.

    Args:
        level: of lengths that depend on values.
        measured: whether costs come from a calibration, in which even a dense gradient is divided and checked.
    """
    key = (plan_key(strategy), devices_per_node, level if strategy.description.format.spread else "", measured)
    return kept(workload, key, lambda: _make(workload, strategy, devices_per_node, level, measured))


def plan_key(strategy: Strategy) -> Hashable:
    """What decides a strategy's exchange: two with the same key have the same plan."""
    s = strategy
    zero = SHARDINGS[s.sharding].weights
    return (
        s.world_size, s.compression, s.exchange, s.options, s.ranks_per_node, s.compress_pull, s.first_bucket_bytes,
        s.bucket_bytes, s.sharding, s.precision if zero else "", s.grad_accum_steps if zero else 1,
    )  # fmt: skip


def plan_buckets(workload: Workload, strategy: Strategy, level: Level = "expected") -> tuple[Bucket, ...]:
    """What is exchanged in one step, in order; nothing for one worker whose weights are not shared out."""
    if strategy.world_size == 1 and not SHARDINGS[strategy.sharding].weights:
        return ()
    parts = kept(workload, _partition_key(strategy), lambda: _partition(workload, strategy))
    alike = {plan: (strategy.traffic(plan, level), strategy.gathers(plan)) for plan in {plan for _, plan in parts}}
    return tuple(Bucket(layers, plan, *alike[plan]) for layers, plan in parts)


def _partition_key(s: Strategy) -> Hashable:
    """What decides which gradients travel together."""
    sized = s.first_bucket_bytes, s.bucket_bytes
    return "partition", SHARDINGS[s.sharding].weights, s.compression, s.options, s.exchange == "allreduce", sized


def _partition(workload: Workload, strategy: Strategy) -> list[tuple[tuple[int, ...], BucketPlan]]:
    """The layers of each group, and its elements."""
    made = strategy.partition(workload.parameters, workload.ready_order)
    return [(tuple({p.layer for p in members}), plan) for members, plan in made]


def _make(workload: Workload, strategy: Strategy, devices_per_node: int, level: Level, measured: bool) -> ExchangePlan:
    buckets = plan_buckets(workload, strategy, level)
    unlike = {bucket.plan: bucket for bucket in buckets}
    made = {plan: _pieces(bucket, measured) for plan, bucket in unlike.items()}
    pieces = [made[bucket.plan] for bucket in buckets]
    flat = [piece for some in pieces for piece in some]
    names = SHARDINGS[strategy.sharding].gathers if buckets else ()
    gathers = [bucket.gathers[i] for i in range(len(names)) for bucket in buckets]
    jobs = [p.what for p in flat if isinstance(p.what, Job)]
    counts = [len(some) for some in pieces]
    return ExchangePlan(
        strategy,
        buckets,
        tuple(flat),
        np.repeat(np.arange(len(buckets)), counts),
        np.array([isinstance(p.what, Job) for p in flat], dtype=np.bool_),
        np.array([p.part == "chunked" for p in flat], dtype=np.bool_),
        np.cumsum([0, *counts])[:-1].astype(np.int64),
        np.array([min(bucket.layers) for bucket in buckets], dtype=np.int64),
        np.array([bucket.traffic.largest for bucket in buckets], dtype=np.float64),
        loads([*(p.what for p in flat if isinstance(p.what, Phase)), *gathers], devices_per_node),
        np.array([(j.work == "encode", j.calls, j.packed, j.dense) for j in jobs], dtype=np.float64).reshape(-1, 4),
        names,
    )


def _pieces(bucket: Bucket, measured: bool) -> list[Piece]:
    """Encode, collectives, decode. What is received in the first collective of the chunks that carries data is added behind it.

    Measured: one line for each of the codec's works over the whole bucket, the fixed part once a chunk.
    """
    t = bucket.traffic
    chunks = max(1, t.chunks) if measured else t.chunks
    calls = max([t.chunks, *(phase.rounds for phase in t.chunked if phase.pattern == "shift")])

    def codec(work: Work) -> list[Piece]:
        packed, dense = getattr(t.compressed, work), getattr(t.dense, work)
        if measured:
            added = t.compressed.reduce + t.dense.reduce + t.inner.reduce
            return [Piece(work, "chunked", Job(work, chunks, added if work == "reduce" else bucket.elements, 0), chunks)]
        return [Piece(work, "chunked", Job(work, calls, packed, dense), calls)] if packed or dense else []

    made: list[Piece] = []
    for phase in t.before:
        made.append(Piece(phase.name, "before", phase, 1))
        if t.inner.reduce and phase.name == "inner_reduce" and not measured:
            made.append(Piece("inner_add", "before", Job("reduce", 1, 0, t.inner.reduce), 1))
    bare = t.chunked and t.chunked[0].pattern == "scatter"  # FSDP's own: no codec, whatever was measured
    made += [] if bare else codec("encode")
    added = bool(bare)
    for phase in t.chunked:
        made.append(Piece(phase.name, "chunked", phase, chunks))
        if not added and phase.name != "sizes" and not phase.ring:
            made += codec("reduce")
            added = True
    made += [] if bare else codec("decode")
    return [*made, *(Piece(phase.name, "after", phase, 1) for phase in t.after)]


def _codec_bytes(bucket: Bucket, strategy: Strategy) -> int:
    """A plain all-reduce works in the bucket itself; else a group is copied together, and chunks are on their way.

    A chunk holds what the busiest rank sends and receives, and the fp32 sum of what it owns. A payload of unknown length has
    room for its worst case.
    """
    if SHARDINGS[strategy.sharding].weights:
        return 0
    if strategy.exchange == "allreduce":
        sent = sum(max(phase.sizes) for phase in bucket.phases)
        return sent if sent != FP32.push_bytes(bucket.elements) else 0
    chunks = -(-bucket.traffic.chunks // IN_FLIGHT) or 1
    known = strategy.description.format.spread is None
    worst = bucket.traffic.chunked if known else strategy.traffic(bucket.plan, "most").chunked
    moved = int(np.sum([phase.sent_by_rank() + phase.received_by_rank() for phase in worst], axis=0).max()) if worst else 0
    inner = sum(int(phase.received_by_rank().max()) for phase in bucket.traffic.before if not phase.ring)
    return FP32.push_bytes(bucket.elements) + moved // chunks + inner


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks that are run again where activations are recomputed.

    Attributes:
        inside: of each layer, 1 where it is run again: in a block, up to the layer that kept the block's last input; what
            comes behind computes nothing that the backward pass needs (``early_stop`` of ``torch.utils.checkpoint``).
        last: of each layer in a block, the block's last layer, before whose backward pass the block is run again.
        kept_bytes: fp32 bytes of one sample that are kept: blocks' inputs, what lies outside, and one block while it is run
            again.
        names: of the last layers' blocks.
    """

    inside: Array
    last: Ints
    kept_bytes: float
    names: tuple[tuple[int, str], ...]


def blocks(workload: Workload) -> Blocks:
    """The blocks of a workload by the names of its layers, such as ``layers.3``."""
    return kept(workload, "blocks", lambda: _blocks(workload))


def _blocks(workload: Workload) -> Blocks:
    names = [block(f"{layer.name}.") for layer in workload.layers]
    members: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        if name:
            members.setdefault(name, []).append(index)
    sizes = [layer.activation_bytes for layer in workload.layers]
    last = np.arange(len(names))
    kept_bytes = sum(size for name, size in zip(names, sizes, strict=True) if not name)
    largest = 0.0
    for own in members.values():
        last[own] = own[-1]
        kept_bytes += next((sizes[i] for i in own if sizes[i]), 0.0)
        largest = max(largest, sum(sizes[i] for i in own))
    inside = np.array([float(bool(name)) for name in names])
    for own in members.values():
        inside[next((i for i in reversed(own) if sizes[i]), own[-1]) : own[-1] + 1] = 0.0
    return Blocks(inside, last, kept_bytes + largest, tuple((own[-1], name) for name, own in members.items()))
