"""Trained tensors of an attached model, and their layout in the flat buffer of one exchange."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import nn

from paceline.strategy.compression.formats import MOST_PADDED, fills_blocks, whole_blocks


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Trained tensor of a model. ``offset`` is the index of its first element among all trained elements."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def numbered(named: Iterable[tuple[str, nn.Parameter]]) -> dict[int, TensorSpec]:
    """Return the specs of parameters in the given order, by the ``id`` of the parameter."""
    tensors: dict[int, TensorSpec] = {}
    offset = 0
    for name, p in named:
        tensors[id(p)] = TensorSpec(name, tuple(p.shape), offset)
        offset += p.numel()
    return tensors


class TensorSlice(NamedTuple):
    """Elements ``start`` to ``stop`` of a buffer, with their tensor."""

    tensor: TensorSpec
    start: int
    stop: int


class GradientSlice(NamedTuple):
    """A flat gradient and its slice of the buffer."""

    piece: TensorSlice
    gradient: torch.Tensor


class Layout:
    """Flat layout of tensors: first the compressed ones in model order, then the dense ones.

    The given order does not matter, because the order of DDP's first step differs from that of later ones.

    Args:
        block: elements that are coded together. Each compressed tensor begins with a block, so that none holds elements of two.
            A tensor too small for a block is dense.

    Attributes:
        pieces: slice of every tensor.
        gaps: ``(start, stop)`` of the padding behind each compressed tensor.
        compressed, total: number of compressed elements, padding included, and of all elements.
        first: first draw of the stochastic rounding. Layouts of other tensors of the model have other draws.
    """

    def __init__(self, tensors: Sequence[TensorSpec], dense: Collection[str], block: int = 1) -> None:
        ordered = sorted(tensors, key=lambda t: t.offset)
        packed = [t for t in ordered if t.name not in dense and (block == 1 or fills_blocks(t.elements, block))]
        encoded = {t.name for t in packed}
        self.pieces: list[TensorSlice] = []
        self.gaps: list[tuple[int, int]] = []
        at = 0
        for tensor in packed:
            stop, at = at + tensor.elements, at + whole_blocks(tensor.elements, block)
            self.pieces.append(TensorSlice(tensor, stop - tensor.elements, stop))
            if stop < at:
                self.gaps.append((stop, at))
        self.compressed = at
        for tensor in ordered:
            if tensor.name not in encoded:
                self.pieces.append(TensorSlice(tensor, at, at + tensor.elements))
                at += tensor.elements
        self.total = at
        self.first = min((t.offset for t in packed), default=0) * (MOST_PADDED if block > 1 else 1)
        self.names = tuple(piece.tensor.name for piece in self.pieces)

    def packed(self, start: int, stop: int) -> Iterator[TensorSlice]:
        """Return the slices of compressed tensors between ``start`` and ``stop``; positions count from ``start``."""
        for tensor, begin, end in self.pieces:
            begin, end = max(begin, start), min(end, stop, self.compressed)
            if begin < end:
                yield TensorSlice(tensor, begin - start, end - start)

    def gaps_in(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the padding between ``start`` and ``stop``; positions count from ``start``."""
        return [(max(a, start) - start, min(b, stop) - start) for a, b in self.gaps if a < stop and b > start]

    def parts(self, gradients: Mapping[str, torch.Tensor]) -> tuple[list[GradientSlice], list[GradientSlice]]:
        """Return the gradients of the compressed and of the dense tensors, each with its slice of its part of the buffer.

        ``gradients`` are flat, by name.
        """
        split: tuple[list[GradientSlice], list[GradientSlice]] = [], []
        for tensor, start, stop in self.pieces:
            dense = start >= self.compressed
            before = self.compressed if dense else 0
            split[dense].append(GradientSlice(TensorSlice(tensor, start - before, stop - before), gradients[tensor.name]))
        return split


def gather(parts: Sequence[GradientSlice], into: torch.Tensor) -> None:
    """Copy the gradients to their slices of ``into``; fp16, bf16 and fp64 become fp32."""
    for (_, start, stop), gradient in parts:
        if gradient.data_ptr() != into[start:stop].data_ptr():
            into[start:stop] = gradient


def scatter(values: torch.Tensor, parts: Sequence[GradientSlice], divisor: float, units: Sequence[float] = ()) -> None:
    """Copy slices back to gradients, divided in the same pass over memory; inverts ``gather``.

    Args:
        units: value of 1 in each part; each part is multiplied by unit / divisor.
    """
    for i, ((_, start, stop), gradient) in enumerate(parts):
        part = values[start:stop]
        same = gradient.dtype == part.dtype and gradient.device == part.device
        out = gradient if same else part
        if units:
            torch.mul(part, units[i] / divisor, out=out)
        elif divisor != 1:
            torch.div(part, divisor, out=out)
        else:
            out = part
        if out is not gradient:
            gradient.copy_(out)


def clip(
    values: torch.Tensor, parts: Sequence[GradientSlice], divisor: float, units: Sequence[float] = ()
) -> dict[str, torch.Tensor]:
    """Clip the finite slices that ``scatter`` would turn into an infinity of fp16, in place. Returns the rest by tensor."""
    rest: dict[str, torch.Tensor] = {}
    narrow = [i for i, (piece, g) in enumerate(parts) if g.dtype == torch.float16 and piece.start < piece.stop]
    if not narrow:
        return rest
    slices = [values[parts[i].piece.start : parts[i].piece.stop] for i in narrow]
    limits = [torch.finfo(torch.float16).max * divisor / (units[i] if units else 1) for i in narrow]
    # All are asked at once: a GPU is waited for once.
    beyond = torch.stack([part.abs().max() > limit for part, limit in zip(slices, limits, strict=True)]).tolist()
    for i, part, limit, large in zip(narrow, slices, limits, beyond, strict=True):
        if large:
            whole = part.clone()
            rest[parts[i].piece.tensor.name] = whole.sub_(part.clamp_(-limit, limit))
    return rest
