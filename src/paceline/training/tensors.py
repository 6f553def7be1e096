"""The trained tensors of an attached model, and where those of one exchange lie in one flat buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Tensor:
    """A trained tensor. ``offset`` is the index of its first element among all trained elements."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


def trained(module: nn.Module) -> dict[int, Tensor]:
    """Every trained tensor of a network, in ``named_parameters()`` order, by the ``id`` of its parameter."""
    found: dict[int, Tensor] = {}
    offset = 0
    for name, p in module.named_parameters():
        if p.requires_grad:
            found[id(p)] = Tensor(name, tuple(p.shape), offset)
            offset += p.numel()
    return found


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of a buffer, and the tensor that they are of."""

    tensor: Tensor
    start: int
    stop: int


class Layout:
    """Tensors one after the other: those that are compressed first, in model order, then those that stay dense.

    The order given does not matter: DDP gathers gradients in another order in its first step than later.

    Attributes:
        pieces: of every tensor; ``compressed`` elements come before ``total``.
        first: the smallest index among all trained elements, where the draws of the stochastic rounding begin.
    """

    def __init__(self, tensors: Sequence[Tensor], dense: Collection[str]) -> None:
        ordered = sorted(tensors, key=lambda t: t.offset)
        packed = [t for t in ordered if t.name not in dense]
        self.pieces: list[Piece] = []
        at = 0
        for tensor in [*packed, *(t for t in ordered if t.name in dense)]:
            self.pieces.append(Piece(tensor, at, at + tensor.elements))
            at += tensor.elements
        self.compressed, self.total = sum(t.elements for t in packed), at
        self.first = min((t.offset for t in packed), default=0)
        self.names = tuple(piece.tensor.name for piece in self.pieces)

    def packed(self, start: int, stop: int) -> Iterator[Piece]:
        """What lies of the compressed tensors between ``start`` and ``stop``; positions count from ``start``."""
        for tensor, begin, end in self.pieces:
            begin, end = max(begin, start), min(end, stop, self.compressed)
            if begin < end:
                yield Piece(tensor, begin - start, end - start)

    def gather(self, parts: Mapping[str, torch.Tensor], packed: torch.Tensor, kept: torch.Tensor) -> None:
        """Copy the gradients, flat and by name, into a buffer of the compressed ones and one of the others.

        fp16, bf16 and fp64 become fp32.
        """
        for values, gradient in self._pairs(parts, packed, kept):
            values.copy_(gradient)

    def scatter(
        self, packed: torch.Tensor, kept: torch.Tensor, parts: Mapping[str, torch.Tensor], divisor: float
    ) -> None:
        """The inverse of ``gather``, divided on the way: one pass over memory and not two."""
        for values, gradient in self._pairs(parts, packed, kept):
            if divisor == 1:
                gradient.copy_(values)
            elif gradient.dtype == values.dtype and gradient.device == values.device:
                torch.div(values, divisor, out=gradient)
            else:
                gradient.copy_(values.div_(divisor))

    def _pairs(
        self, parts: Mapping[str, torch.Tensor], packed: torch.Tensor, kept: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for tensor, start, stop in self.pieces:
            dense = start >= self.compressed
            at = start - self.compressed if dense else start
            yield (kept if dense else packed)[at : at + stop - start], parts[tensor.name]
