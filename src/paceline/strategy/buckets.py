"""Groups of gradients that are exchanged together: DDP's buckets, fused if a codec works on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from paceline.strategy.compression.compression import Compression, NamedShape, low_rank_factors
from paceline.strategy.compression.formats import FP32, Format, fills_blocks, whole_blocks

T = TypeVar("T", bound=NamedShape)

FIRST_BUCKET_BYTES = 1 << 20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_BYTES = 25 << 20  # DistributedDataParallel's default bucket_cap_mb
FUSE_BYTES = 4 << 20  # below about 4 MB a codec call costs the same whatever its size (Cupcake, MLSys 2023)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Element counts of one bucket, or of several fused ones, by wire format.

    Attributes:
        compressed: elements in the compression's format; ``tensors`` is the number of tensors they come from.
        dense: elements that the codec does not encode; they are sent as fp32 or bfloat16.
        factors: elements of the two low-rank factors that are sent instead of the compressed ones.
        shapes: for a sharded unit: each tensor's rows, elements per row, and True if it is compressed.
        padding: zeros among the compressed elements, because every tensor begins with a block of its format.
    """

    compressed: int
    tensors: int
    dense: int
    factors: tuple[int, int] = (0, 0)
    shapes: tuple[tuple[int, int, bool], ...] = ()
    padding: int = 0

    @property
    def elements(self) -> int:
        """Number of elements of the bucket."""
        return self.compressed + self.dense

    def shard(self, owners: int, copies: int = 1) -> tuple[int, int]:
        """Compressed and dense elements of one owner's shard. As in FSDP2, every tensor is padded to equal numbers of rows.

        ``copies``: ranks with equal shards that divide each tensor of a shard further, by elements.
        """
        if not self.shapes:
            return -(-self.compressed // (owners * copies)), -(-self.dense // (owners * copies))
        compressed, dense = (
            sum(-(-(-(-rows // owners) * elements) // copies) for rows, elements, packed in self.shapes if packed is kind)
            for kind in (True, False)
        )
        return compressed, dense

    def encoded_shard(self, owners: int, block: int, copies: int = 1, every: bool = False) -> tuple[int, int]:
        """Return the elements of one owner's shard as they are sent: encoded ones with their padding, and dense ones.

        A tensor whose shard is too small for ``block`` elements that are coded together is dense.

        Args:
            copies: as of ``shard``.
            every: encode tensors that the compression leaves dense too, as a gather of weights does.
        """
        if not self.shapes:
            compressed, dense = self.shard(owners, copies)
            return (whole_blocks(compressed + dense, block), 0) if every else (whole_blocks(compressed, block), dense)
        encoded = dense = 0
        for rows, elements, packed in self.shapes:
            shard = -(-(-(-rows // owners) * elements) // copies)
            if (packed or every) and fills_blocks(shard, block):
                encoded += whole_blocks(shard, block)
            else:
                dense += shard
        return encoded, dense

    def streams(self, compression: Compression, dense: Format = FP32) -> tuple[tuple[Format, int], ...]:
        """Formats and element counts in sending order: compressed elements first, then those in format ``dense``."""
        return tuple((f, n) for f, n in ((compression.format, self.compressed + self.padding), (dense, self.dense)) if n)


def buckets(ready: Sequence[T], bucket_bytes: int = BUCKET_BYTES, first_bytes: int = FIRST_BUCKET_BYTES) -> list[list[T]]:
    """Return DDP's buckets for fp32 gradients, in the order in which gradients become ready after the first step.

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
    if result and not filled:  # tensors without elements are no bucket
        result[-1].extend(current)
        return result
    return [*result, current] if current else result


def fuse(separate: Sequence[Sequence[T]], least_bytes: int = FUSE_BYTES) -> list[list[T]]:
    """Join consecutive buckets until each group holds ``least_bytes`` of fp32. The last group may hold fewer."""
    groups: list[list[T]] = []
    current: list[T] = []
    for bucket in separate:
        current.extend(bucket)
        if 4 * sum(prod(tensor.shape) for tensor in current) >= least_bytes:
            groups.append(current)
            current = []
    return [*groups, current] if current else groups


def plan_unit(unit: Sequence[NamedShape], compression: Compression, dense_names: Sequence[str] | set[str]) -> BucketPlan:
    """Split a unit sharded by rows as ``plan_bucket`` does. Experts' stacked matrices are sharded by each matrix's rows."""
    every = compression.rule is None
    sized = [(t.name, t.shape[: 1 + ("experts" in t.name.split("."))], t.shape) for t in unit if prod(t.shape)]
    shapes = tuple((prod(r), prod(shape) // prod(r), every or name not in dense_names) for name, r, shape in sized)
    return replace(plan_bucket(unit, compression, dense_names), shapes=shapes)


def plan_bucket(bucket: Sequence[NamedShape], compression: Compression, dense_names: Sequence[str] | set[str]) -> BucketPlan:
    """Split a bucket's elements into compressed and dense. ``dense_names`` from ``Compression.dense``."""
    whole = sum(prod(t.shape) for t in bucket)
    if compression.rule is None and not compression.low_rank:
        return BucketPlan(whole, len(bucket), 0)
    packed = [t for t in bucket if t.name not in dense_names]
    compressed = sum(prod(t.shape) for t in packed)
    factors = (0, 0)
    if compression.low_rank:
        rank, rate = int(compression.option("rank")), compression.option("min_rate")
        pairs = [low_rank_factors(t.shape, rank, rate) or (0, 0) for t in packed]
        factors = sum(p for p, _ in pairs), sum(q for _, q in pairs)
    padding = sum(whole_blocks(prod(t.shape), compression.format.block) for t in packed) - compressed
    return BucketPlan(compressed, len(packed), whole - compressed, factors, padding=padding)
