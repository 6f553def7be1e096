"""Base of streams without a packed copy, whose elements are the gradients themselves. Means replace the gradients.

A message of another rank is kept until the sum is encoded. It is read, and checked for damage, only then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.array_types import F32
from paceline.codecs.arrays import on_host
from paceline.codecs.counter import Key
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers

PAST_CACHES = 32 << 20
"""Bytes of gradients from which means are written past the caches: more than a core's caches and its part of a shared one hold
until the optimizer reads them."""


def lie_flat(parts: Sequence[GradientSlice]) -> bool:
    """Return whether native kernels can read and write these gradients where they are."""
    return all(on_host(g) and g.dtype == torch.float32 and g.is_contiguous() for _, g in parts)


class PartsStream(ABC):
    """A ``Stream`` over gradients, one after the other, for which ``lie_flat`` holds.

    Args:
        key, first: random stream of the stochastic rounding; element k uses draw ``first + k``.
        gaps: padding between the gradients, which stays zero.
    """

    block = 1

    def __init__(self, parts: Sequence[GradientSlice], key: Key, first: int, gaps: Sequence[tuple[int, int]] = ()) -> None:
        self._key, self._first = key, first
        pieces = [(piece.start, piece.stop, gradient.detach().numpy()) for piece, gradient in parts]
        pieces += [(start, stop, np.zeros(stop - start, np.float32)) for start, stop in gaps]
        pieces.sort(key=lambda piece: piece[:2])
        self._starts, self._stops = [start for start, _, _ in pieces], [stop for _, stop, _ in pieces]
        self._gradients: list[F32] = [values for _, _, values in pieces]
        self._past_caches = 4 * self.count >= PAST_CACHES
        self._sums: dict[tuple[int, int], list[Any]] = {}  # messages that are to be added, by their elements

    @property
    def count(self) -> int:
        """Number of elements in the stream."""
        return self._stops[-1] if self._stops else 0

    @abstractmethod
    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message; see ``Stream``. A sum of workers is that of messages since ``settle``, never sent as fp32."""

    def encode_each(
        self, spans: Sequence[tuple[int, int]], workers: int, exact: bool = False, buffers: Buffers = FRESH
    ) -> list[torch.Tensor]:
        """Return several messages; see ``Stream``."""
        return [self.encode(*span, workers, exact, buffers) for span in spans]

    @abstractmethod
    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int:
        """Return the bytes of a message; see ``Stream``."""

    @abstractmethod
    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution; see ``Stream``."""

    def add(self, message: torch.Tensor, start: int, stop: int, workers: int = 1) -> None:
        """Add a message, which is read when the sum is encoded; see ``Stream``."""
        if stop > start:
            self._sums[start, stop].append(message)

    def set(self, message: torch.Tensor, start: int, stop: int, workers: int = 1, exact: bool = False) -> None:
        """Replace elements by a message; see ``Stream``."""
        self.set_sum([message], start, stop)

    @abstractmethod
    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace elements by the sum of all messages; see ``Stream``."""

    def _pieces(self, start: int, stop: int) -> tuple[list[F32], slice]:
        """Return the pieces of gradients that are elements ``start`` to ``stop``, with the indices of the gradients."""
        here = slice(bisect_right(self._stops, start), bisect_left(self._starts, stop))
        of = zip(self._gradients[here], self._starts[here], strict=True)
        return [gradient[max(0, start - begin) : stop - begin] for gradient, begin in of], here
