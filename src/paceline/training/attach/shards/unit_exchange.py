"""Reduce-scatter of one FSDP2 unit: a matrix with a row for each owner, compressed, and summed at the owners.

A *unit* is a set of tensors that FSDP2 gathers and scatters together. Its gradients are N rows, one for each rank that shares
the unit out; row j holds rank j's part of every tensor, padded to equal length as in FSDP2.

Over nodes the first leg is dense: the ranks of a node add up the rows of the owners with their own local number, and the codec
works on the second leg, between nodes (Wang et al. 2023, ZeRO++, arXiv 2306.10209, section 3.3). Residuals then cover the
elements that a rank sends between nodes: with eight ranks a node an eighth of the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import ceil

import torch

from paceline.codecs import Codec, Key
from paceline.codecs.codec import MessageScaling
from paceline.codecs.reference.dense import Bf16, Fp32
from paceline.strategy.compression.formats import fills_blocks, whole_blocks
from paceline.strategy.exchanges import Exchange
from paceline.training.exchanges.gradients.agreement import Shared, agree
from paceline.training.exchanges.gradients.gradient_statistics import is_finite
from paceline.training.exchanges.gradients.tensor_layout import TensorSpec
from paceline.training.exchanges.node_sums import reduce_scatter
from paceline.training.exchanges.streams.encoded_streams import PLAIN, CodecStream
from paceline.training.exchanges.to_owner import reduce_to_owners
from paceline.training.exchanges.wires.collectives import Wire


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """Trained tensor of a unit.

    Attributes:
        whole: its name, shape and offset on a rank that has all of it.
        shard: elements of a shard, padding included.
        start: index of its first element in a row.
        dimension: by which FSDP2 shards it; only 0 is padded.
    """

    whole: TensorSpec
    shard: int
    start: int
    dimension: int = 0

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.whole.name

    def whole_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the tensor with the shards ``rows``, (owners, shard)."""
        if self.dimension == 0:
            return rows.reshape(-1)[: self.whole.elements].view(self.whole.shape)
        shape = list(self.whole.shape)
        shape[self.dimension] //= rows.shape[0]
        return torch.cat([row.view(shape) for row in rows], self.dimension)

    def rows_of(self, whole: torch.Tensor, owners: int) -> torch.Tensor:
        """Return the shards of a tensor, (owners, shard), padded with zeros; inverts ``whole_of``."""
        if self.dimension == 0:
            rows = whole.new_zeros(owners * self.shard)
            rows[: whole.numel()] = whole.reshape(-1)
            return rows.view(owners, self.shard)
        return torch.stack([part.reshape(-1) for part in whole.chunk(owners, self.dimension)])


def sharded(specs: Sequence[TensorSpec], dimensions: Sequence[int], owners: int) -> tuple[ShardedTensor, ...]:
    """Return the tensors of a unit in rows for ``owners`` ranks, padded as in FSDP2. ``dimensions``: sharded one of each."""
    tensors: list[ShardedTensor] = []
    at = 0
    for spec, dimension in zip(specs, dimensions, strict=True):
        shard = spec.elements // owners
        if dimension == 0 and spec.elements:
            shard = ceil(spec.shape[0] / owners) * (spec.elements // spec.shape[0])
        tensors.append(ShardedTensor(spec, shard, at, dimension))
        at += shard
    return tuple(tensors)


class UnitLayout:
    """Compressed columns of a unit's rows, and their positions in the buffers of an exchange.

    Attributes:
        tensors: the unit's tensors in FSDP2's order.
        columns: elements of a row.
        compressed: elements of a row in the codec's format, padding included; the others are dense.
        packed, kept: each compressed, and each dense tensor with its columns in the buffer of its kind.
        gaps: columns of the padding behind each compressed tensor; see ``tensor_layout.Layout``.
    """

    def __init__(self, tensors: Sequence[ShardedTensor], dense: Collection[str], block: int = 1) -> None:
        self.tensors = tuple(tensors)
        self.columns = sum(t.shard for t in tensors)
        encoded = {t.name for t in tensors if t.name not in dense and (block == 1 or fills_blocks(t.shard, block))}
        self.packed, self.compressed = _placed([t for t in tensors if t.name in encoded], block)
        self.kept, self.dense = _placed([t for t in tensors if t.name not in encoded], 1)
        ends = (columns.stop for _, columns in self.packed)
        self.gaps = [(end, whole_blocks(end, block)) for end in ends if end % block]


_Placed = list[tuple[ShardedTensor, slice]]


def _placed(tensors: Sequence[ShardedTensor], block: int) -> tuple[_Placed, int]:
    at, placed = 0, []
    for tensor in tensors:
        placed.append((tensor, slice(at, at + tensor.shard)))
        at += whole_blocks(tensor.shard, block)
    return placed, at


@dataclass(frozen=True, kw_only=True)
class OwnerSetup:
    """Setup of the reduction of units to their owners.

    Attributes:
        codec: codec of the compressed tensors.
        exchange: one of ``exchanges.to_owner.TO_OWNER``.
        world: the wire among all ranks that share a unit out. They agree on scales, and on whether all gradients fit the codec.
        outer: wire of the encoded rows: all of these ranks, or those with this rank's place on every node.
        inner: the ranks of this node; None without the dense leg.
        momentum: factor of the local momentum, which the optimizer then does without; 0 has none.
        dense: codec of elements that ``codec`` does not encode: tensors that stay dense, a node's sums.
    """

    codec: Codec
    exchange: Exchange
    world: Wire
    outer: Wire
    inner: Wire | None = None
    momentum: float = 0.0
    dense: Codec = PLAIN

    @property
    def narrow(self) -> bool:
        """True if numbers that the codec does not encode are sent as bfloat16."""
        return isinstance(self.dense, Bf16)

    @property
    def rows(self) -> int:
        """Number of rows that this rank sends and keeps: the owners of ``outer``."""
        return self.outer.world_size


@dataclass(frozen=True)
class Owed:
    """Error feedback of one unit, (rows x compressed columns) each: residuals of earlier encodings, and the local momentum."""

    residual: torch.Tensor
    velocity: torch.Tensor | None = None


@dataclass(frozen=True)
class UnitGradients:
    """Inputs of one exchange.

    Attributes:
        matrix: (owners, columns), of any float type.
        owed: error feedback; None for none.
        left: destination of the error feedback after the step; may be ``owed`` itself.
        draws, first: random stream and first draw of the stochastic rounding; element k of the rows takes draw ``first + k``.
    """

    matrix: torch.Tensor
    owed: Owed | None
    left: Owed | None
    draws: Key
    first: int


def reduce_unit(
    setup: OwnerSetup, layout: UnitLayout, gradients: UnitGradients, room: Callable[[int], torch.Tensor], dense: bool = False
) -> tuple[torch.Tensor, bool]:
    """Sum the rows at their owners.

    Args:
        room: returns an fp32 buffer of a number of elements.
        dense: send everything uncompressed, as in the rest of a step that had a NaN or an infinity.

    Returns:
        The sum over all ranks of this rank's row, (columns,) in FSDP2's order, and whether every gradient of every rank was fit
        for the codec. If not, the sum is that of the dense gradients and ``left`` is not written.
    """
    meter, rows = setup.world.meter, setup.rows
    with meter.span("gather", "codec"):
        mine = _own_places(setup, gradients.matrix)
        if rows == 1:  # one node: nothing to compress
            return mine[0], is_finite(mine)
        buffer = room(rows * (layout.compressed + layout.dense))
        packed = buffer[: rows * layout.compressed].view(rows, layout.compressed)
        kept = buffer[rows * layout.compressed :].view(rows, layout.dense)
        for tensor, columns in layout.kept:
            kept[:, columns] = mine[:, tensor.start : tensor.start + tensor.shard]
        for start, stop in layout.gaps:
            packed[:, start:stop] = 0
    parts = [mine[:, t.start : t.start + t.shard] for t, _ in layout.packed]
    lossless = isinstance(setup.codec, Fp32 | Bf16) or not parts  # fp32 and bf16 have NaN and infinity
    scalings = [] if lossless else _agree(setup, layout, parts, kept, dense)
    if scalings is None:
        for (_, columns), part in zip(layout.packed, parts, strict=True):
            packed[:, columns] = part
        _run(setup, _dense(setup, packed), _dense(setup, kept))
        return _own_row(setup, layout, packed, kept, ()), False
    with meter.span("prepare", "codec"):
        stream = _compressed(setup, layout, gradients, parts, packed, scalings)
    _run(setup, stream, _dense(setup, kept))
    if gradients.left is not None:  # this rank's own row was not sent: all of it is in the sum
        gradients.left.residual[setup.outer.rank].zero_()
        if gradients.left.velocity is not None:
            gradients.left.velocity[setup.outer.rank].zero_()
    total = _own_row(setup, layout, packed, kept, scalings)
    return total, not lossless or is_finite(total)


def _own_places(setup: OwnerSetup, matrix: torch.Tensor) -> torch.Tensor:
    """Return the rows that this rank sends on: all, or over nodes the node's sums for owners with its own local number."""
    if setup.inner is None:
        return matrix.float()
    local, nodes = setup.inner.world_size, setup.outer.world_size
    by_place = matrix.view(nodes, local, -1).transpose(0, 1).float().contiguous().view(-1)
    mine = by_place.new_empty(by_place.numel() // local)
    return reduce_scatter(setup.inner, mine, by_place, setup.narrow).view(nodes, -1)


def _agree(
    setup: OwnerSetup, layout: UnitLayout, parts: Sequence[torch.Tensor], kept: torch.Tensor, dense: bool
) -> list[MessageScaling] | None:
    """Agree with the other ranks on the scale of each tensor; None if a gradient of any rank is unfit for the codec."""
    codec, tensors = setup.codec, list(parts)
    if codec.agrees:
        tensors = [_unpadded(setup, pair[0], part) for pair, part in zip(layout.packed, parts, strict=True)]
    shared = Shared(0, len(tensors) if codec.agrees else 0)
    agreement = agree(codec, setup.world, tensors, shared, kept, dense)
    return [codec.finish(*pair) for pair in zip(agreement.own, agreement.agreed, strict=True)] if agreement.fit else None


def _unpadded(setup: OwnerSetup, tensor: ShardedTensor, part: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in its rows, flat; without FSDP2's padding if the rows are those of all owners."""
    flat = part.reshape(-1)
    return flat[: tensor.whole.elements] if setup.inner is None else flat


def _compressed(
    setup: OwnerSetup,
    layout: UnitLayout,
    gradients: UnitGradients,
    parts: Sequence[torch.Tensor],
    packed: torch.Tensor,
    scalings: Sequence[MessageScaling],
) -> CodecStream:
    """Return the compressed columns as a stream of rows."""
    flat, owed, left = packed.view(-1), gradients.owed, gradients.left
    starts = range(0, flat.numel(), max(1, layout.compressed))
    gaps = [(row + start, row + stop) for row in starts for start, stop in layout.gaps] if setup.codec.pads_with_mean else []
    if owed is None or left is None:
        for index, ((_, columns), part) in enumerate(zip(layout.packed, parts, strict=True)):
            here = packed[:, columns]
            if scalings:
                torch.clamp(part, -scalings[index].bound, scalings[index].bound, out=here)
                here.mul_(scalings[index].factor)
            else:
                here.copy_(part)
        return CodecStream(setup.codec, flat, gradients.draws, gradients.first, gaps=gaps)
    for (_, columns), part in zip(layout.packed, parts, strict=True):
        if owed.velocity is not None and left.velocity is not None:
            part = torch.mul(owed.velocity[:, columns], setup.momentum, out=left.velocity[:, columns]).add_(part)
        torch.add(owed.residual[:, columns], part, out=left.residual[:, columns])
    velocity = None if left.velocity is None else left.velocity.view(-1)
    residual = left.residual.view(-1)
    return CodecStream(setup.codec, flat, gradients.draws, gradients.first, residual, velocity, gaps=gaps)


def _run(setup: OwnerSetup, *streams: CodecStream) -> None:
    reduce_to_owners([stream for stream in streams if stream.count], setup.outer, setup.exchange)


def _dense(setup: OwnerSetup, values: torch.Tensor) -> CodecStream:
    return CodecStream(setup.dense, values.view(-1), Key(0, 0), 0)


def _own_row(
    setup: OwnerSetup, layout: UnitLayout, packed: torch.Tensor, kept: torch.Tensor, scalings: Sequence[MessageScaling]
) -> torch.Tensor:
    """Return this rank's row, in FSDP2's order."""
    with setup.world.meter.span("scatter", "codec"):
        row = packed.new_empty(layout.columns)
        for index, (tensor, columns) in enumerate(layout.packed):
            here = row[tensor.start : tensor.start + tensor.shard]
            torch.mul(packed[setup.outer.rank, columns], scalings[index].unit if scalings else 1.0, out=here)
        for tensor, columns in layout.kept:
            row[tensor.start : tensor.start + tensor.shard] = kept[setup.outer.rank, columns]
        return row
