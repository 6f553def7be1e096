"""Exchanges, described: who sends how many bytes to whom in one step.

Two mechanisms cover the three exchanges. ``allreduce`` is the engine's own ring. In the others every element has an owner:
workers *push* their encoded gradient to it, it sums, they *pull* the sum. With ``sharded`` each worker owns one shard; with
``parameter_server`` rank 0 owns everything, which is the baseline of the TernGrad and INCEPTIONN papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeVar

import numpy as np

from paceline.strategy.compression import FP32, Compression, Format, NamedShape

T = TypeVar("T", bound=NamedShape)

EXCHANGES = ("allreduce", "sharded", "parameter_server", "ring", "allgather", "hierarchical")
FUSE_BYTES = 4 << 20
CHUNK_ELEMENTS = 1 << 20
FIRST_BUCKET_BYTES = 1 << 20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default bucket_cap_mb
SHARD_ALIGN = 64  # elements: shards begin on whole blocks of the ternary format


@dataclass(frozen=True, slots=True)
class Phase:
    """One collective of one bucket.

    Attributes:
        name: ``allreduce``, ``scales``, ``push`` or ``pull``.
        shards: ``push``: bytes that each other rank sends to rank j; ``pull``: bytes that rank j sends to each other rank;
            a ring: one entry, the bytes of the buffer.
    """

    name: Literal["allreduce", "scales", "push", "pull"]
    shards: tuple[int, ...]
    world_size: int

    @property
    def ring(self) -> bool:
        """Whether it is an all-reduce of one buffer."""
        return self.name in ("allreduce", "scales")

    def sent(self, rank: int) -> int:
        """Bytes that ``rank`` sends. A ring all-reduce of n bytes sends 2 (N-1)/N n, rounded up."""
        n = self.world_size
        if self.ring:
            return -(-2 * (n - 1) * self.shards[0] // n)
        return sum(self.shards) - self.shards[rank] if self.name == "push" else self.shards[rank] * (n - 1)

    def received(self, rank: int) -> int:
        """Bytes that ``rank`` receives."""
        n = self.world_size
        if self.ring:
            return self.sent(rank)
        return self.shards[rank] * (n - 1) if self.name == "push" else sum(self.shards) - self.shards[rank]


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """The elements of one bucket by the way they travel.

    Attributes:
        compressed: elements in the compression's format; ``tensors`` is the number of tensors they come from.
        dense: elements that travel as fp32.
    """

    compressed: int
    tensors: int
    dense: int

    @property
    def elements(self) -> int:
        """All elements of the bucket."""
        return self.compressed + self.dense

    def streams(self, compression: Compression) -> tuple[tuple[Format, int], ...]:
        """Formats and element counts, in the order of a message: compressed first."""
        return tuple((f, n) for f, n in ((compression.format, self.compressed), (FP32, self.dense)) if n)


def buckets(ready: Sequence[T], bucket_bytes: int = BUCKET_BYTES, first_bytes: int = FIRST_BUCKET_BYTES) -> list[list[T]]:
    """DDP's buckets for fp32 gradients in the order in which they become ready (after its first step).

    A bucket closes with the tensor that reaches its limit; the first limit is small so that communication starts early
    (Li et al. 2020, PyTorch Distributed, VLDB, section 3.2.3).
    """
    result: list[list[T]] = []
    current: list[T] = []
    filled, limit = 0, first_bytes
    for tensor in ready:
        current.append(tensor)
        filled += 4 * prod(tensor.shape)
        if filled >= limit:
            result.append(current)
            current, filled, limit = [], 0, bucket_bytes
    return [*result, current] if current else result


def shard_bounds(count: int, exchange: str, world_size: int) -> list[tuple[int, int]]:
    """``(start, stop)`` of the elements that each rank owns; in whole blocks, the last ones possibly short or empty."""
    if exchange == "parameter_server":
        return [(0, count)] + [(count, count)] * (world_size - 1)
    chunk = -(-count // (world_size * SHARD_ALIGN)) * SHARD_ALIGN
    return [(min(rank * chunk, count), min((rank + 1) * chunk, count)) for rank in range(world_size)]


def plan_bucket(bucket: Sequence[NamedShape], compression: Compression, dense_names: Sequence[str] | set[str]) -> BucketPlan:
    """Split a bucket's elements into compressed and dense. ``dense_names`` from ``Compression.dense``."""
    if not compression.shares_scale:
        return BucketPlan(sum(prod(t.shape) for t in bucket), len(bucket), 0)
    packed = [prod(t.shape) for t in bucket if t.name not in dense_names]
    return BucketPlan(sum(packed), len(packed), sum(prod(t.shape) for t in bucket) - sum(packed))


def phases(plan: BucketPlan, compression: Compression, exchange: str, world_size: int) -> list[Phase]:
    """The collectives of one bucket, in order, with the bytes that each rank sends in each."""
    if exchange == "allreduce":
        return [Phase("allreduce", (compression.format.push_bytes(plan.elements),), world_size)]
    push, pull = [0] * world_size, [0] * world_size
    for fmt, count in plan.streams(compression):
        for rank, (start, stop) in enumerate(shard_bounds(count, exchange, world_size)):
            push[rank] += fmt.push_bytes(stop - start)
            pull[rank] += fmt.pull_bytes(stop - start, world_size)
    scales = compression.shares_scale and plan.tensors > 0
    return [
        *([Phase("scales", (4 * (plan.tensors + 1),), world_size)] if scales else []),
        Phase("push", tuple(push), world_size),
        Phase("pull", tuple(pull), world_size),
    ]


def busiest_sent(collectives: Sequence[Phase]) -> int:
    """Bytes sent in all ``collectives`` by the rank that sends most: the maximum over ranks of the sum of ``Phase.sent``."""
    if not collectives:
        return 0
    total = np.zeros(collectives[0].world_size, dtype=np.int64)
    for phase in collectives:
        shards = np.asarray(phase.shards, dtype=np.int64)
        if phase.ring:
            total += phase.sent(0)
        else:
            total += shards.sum() - shards if phase.name == "push" else shards * (phase.world_size - 1)
    return int(total.max())
