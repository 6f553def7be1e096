"""The trained tensors of an attached model, and where those of one exchange lie in one flat buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A trained tensor. ``offset`` is the index of its first element among all trained elements."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


def numbered(named: Iterable[tuple[str, nn.Parameter]]) -> dict[int, TensorSpec]:
    """Tensors one after the other, by the ``id`` of the parameter."""
    tensors: dict[int, TensorSpec] = {}
    offset = 0
    for name, p in named:
        tensors[id(p)] = TensorSpec(name, tuple(p.shape), offset)
        offset += p.numel()
    return tensors


class TensorSlice(NamedTuple):
    """Elements ``start`` to ``stop`` of a buffer, and the tensor that they are of."""

    tensor: TensorSpec
    start: int
    stop: int


class GradientSlice(NamedTuple):
    """A gradient, flat, and where it goes."""

    piece: TensorSlice
    gradient: torch.Tensor


class Layout:
    """Tensors one after the other: those that are compressed first, in model order, then those that stay dense.

    The order given does not matter: DDP gathers gradients in another order in its first step than later.

    Attributes:
        pieces: of every tensor; ``compressed`` elements come before ``total``.
        first: the smallest index among all trained elements, where the draws of the stochastic rounding begin.
    """

    def __init__(self, tensors: Sequence[TensorSpec], dense: Collection[str]) -> None:
        ordered = sorted(tensors, key=lambda t: t.offset)
        packed = [t for t in ordered if t.name not in dense]
        self.pieces: list[TensorSlice] = []
        at = 0
        for tensor in [*packed, *(t for t in ordered if t.name in dense)]:
            self.pieces.append(TensorSlice(tensor, at, at + tensor.elements))
            at += tensor.elements
        self.compressed, self.total = sum(t.elements for t in packed), at
        self.first = min((t.offset for t in packed), default=0)
        self.names = tuple(piece.tensor.name for piece in self.pieces)

    def packed(self, start: int, stop: int) -> Iterator[TensorSlice]:
        """What lies of the compressed tensors between ``start`` and ``stop``; positions count from ``start``."""
        for tensor, begin, end in self.pieces:
            begin, end = max(begin, start), min(end, stop, self.compressed)
            if begin < end:
                yield TensorSlice(tensor, begin - start, end - start)

    def parts(self, gradients: Mapping[str, torch.Tensor]) -> tuple[list[GradientSlice], list[GradientSlice]]:
        """The gradients, flat and by name, of the compressed tensors and of the others, each with its place among its like."""
        split: tuple[list[GradientSlice], list[GradientSlice]] = [], []
        for tensor, start, stop in self.pieces:
            dense = start >= self.compressed
            before = self.compressed if dense else 0
            split[dense].append(GradientSlice(TensorSlice(tensor, start - before, stop - before), gradients[tensor.name]))
        return split


def gather(parts: Sequence[GradientSlice], into: torch.Tensor) -> None:
    """Copy the gradients to their places in ``into``; fp16, bf16 and fp64 become fp32."""
    for (_, start, stop), gradient in parts:
        if gradient.data_ptr() != into[start:stop].data_ptr():
            into[start:stop] = gradient


def scatter(values: torch.Tensor, parts: Sequence[GradientSlice], divisor: float, units: Sequence[float] = ()) -> None:
    """The inverse of ``gather``, divided on the way: one pass over memory and not two.

    Args:
        units: what 1 stands for in each part; the quotient of unit and divisor then multiplies.
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
