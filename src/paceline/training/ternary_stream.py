"""TernGrad's stream without a packed copy: from the gradients into messages, and from the sum's message into the gradients.

Each gradient is read twice (its moments, its codes) and written once. Sums are added as bit planes, as they travel.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline import codecs
from paceline.array_types import F32
from paceline.codecs import Codec, ternary_parts
from paceline.codecs.codec import MessageScaling
from paceline.codecs.counter import Key
from paceline.training.collectives import NOTHING
from paceline.training.message_buffers import FRESH, Buffers
from paceline.training.tensor_layout import GradientSlice


def fits(codec: Codec, parts: Sequence[GradientSlice]) -> bool:
    """Whether a ``TernaryStream`` can exchange these gradients."""
    return ternary_parts.serves(codec) and all(
        gradient.device.type == "cpu" and gradient.dtype == torch.float32 and gradient.is_contiguous() for _, gradient in parts
    )


class TernaryStream:
    """A ``Stream`` of TernGrad's codec whose elements are the gradients themselves. It leaves means in them, not sums.

    Args:
        parts: gradients, one after the other, for which ``fits`` holds.
        scalings: of each gradient, from ``codec.finish``.
        key, first: random stream of the stochastic rounding; element k uses draw ``first + k``.
        divisor: workers of the mean.
    """

    def __init__(
        self,
        codec: Codec,
        parts: Sequence[GradientSlice],
        scalings: Sequence[MessageScaling],
        key: Key,
        first: int,
        divisor: int,
    ) -> None:
        self._codec, self._key, self._first = codec, key, first
        self._gradients: list[F32] = [gradient.detach().numpy() for _, gradient in parts]
        self._starts = [piece.start for piece, _ in parts]
        self._stops = [piece.stop for piece, _ in parts]
        self._bounds = np.array([scaling.bound for scaling in scalings], np.float32)
        self._factors = np.array([scaling.factor for scaling in scalings], np.float32)
        self._means = np.array([scaling.unit / divisor for scaling in scalings], np.float32)
        self._sums: dict[tuple[int, int], list[Any]] = {}  # messages that are to be added, by their elements

    @property
    def count(self) -> int:
        """Elements."""
        return self._stops[-1] if self._stops else 0

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """See ``Stream``. The sum of several workers is that of the messages since ``settle``; it is never sent as fp32."""
        assert not exact, "an exchange with dense pulls has another stream"
        if stop == start:
            return NOTHING
        out = buffers.take(self._bytes(start, stop, workers))
        if workers > 1:
            return torch.as_tensor(ternary_parts.add(self._sums.pop((start, stop)), stop - start, out))
        parts, here = self._of(start, stop)
        bounds, factors = self._bounds[here], self._factors[here]
        return torch.as_tensor(ternary_parts.encode(parts, bounds, factors, self._key, self._first + start, out))

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int:
        """See ``Stream``."""
        return self._bytes(start, stop, workers) if stop > start else 0

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """See ``Stream``."""
        if stop > start:
            self._sums[start, stop] = [self.encode(start, stop, 1, buffers=buffers)]

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``. The message is read when the sum is encoded, and a damaged one is found then."""
        if stop > start:
            self._sums[start, stop].append(message)

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """See ``Stream``."""
        if stop > start:
            parts, here = self._of(start, stop)
            ternary_parts.decode(message, parts, self._means[here])

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """See ``Stream``."""
        if stop > start:
            out = buffers.take(self._bytes(start, stop, max(2, len(messages))))
            self.set(torch.as_tensor(ternary_parts.add(messages, stop - start, out)), start, stop)

    def _bytes(self, start: int, stop: int, workers: int) -> int:
        return codecs.max_payload_bytes(self._codec.summing(workers), stop - start)

    def _of(self, start: int, stop: int) -> tuple[list[F32], slice]:
        """The pieces of gradients that are elements ``start`` to ``stop``, and which gradients they belong to."""
        here = slice(bisect_right(self._stops, start), bisect_left(self._starts, stop))
        of = zip(self._gradients[here], self._starts[here], strict=True)
        return [gradient[max(0, start - begin) : stop - begin] for gradient, begin in of], here
