"""TernGrad's stream without a packed copy: from the gradients into messages, and from the sum's message into the gradients.

Each gradient is read twice (its moments, its codes) and written once. Sums are bit planes, in the format of messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline import codecs
from paceline.codecs import Codec, ternary_parts
from paceline.codecs.codec import MessageScaling
from paceline.codecs.counter import Key
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice
from paceline.training.exchanges.streams.parts_stream import PartsStream, lie_flat
from paceline.training.exchanges.wires.collectives import NOTHING
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def fits(codec: Codec, parts: Sequence[GradientSlice]) -> bool:
    """Return whether a ``TernaryStream`` can exchange these gradients."""
    return ternary_parts.serves(codec) and lie_flat(parts)


class TernaryStream(PartsStream):
    """A ``Stream`` of TernGrad's codec whose elements are the gradients themselves. It leaves means in them, not sums.

    Args:
        parts: gradients, one after the other, for which ``fits`` holds.
        scalings: scalings of each gradient, from ``codec.finish``.
        key, first: as of ``PartsStream``.
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
        super().__init__(parts, key, first)
        self._codec, self._kinds = codec, dict[int, Codec]()  # what sums of so many workers are encoded as
        self._bounds = np.array([scaling.bound for scaling in scalings], np.float32)
        self._factors = np.array([scaling.factor for scaling in scalings], np.float32)
        self._means = np.array([scaling.unit / divisor for scaling in scalings], np.float32)

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message; see ``PartsStream``."""
        assert not exact, "an exchange with dense pulls has another stream"
        if stop == start:
            return NOTHING
        out = buffers.take(self._bytes(start, stop, workers))
        if workers > 1:
            return torch.as_tensor(ternary_parts.add(self._sums.pop((start, stop)), stop - start, out))
        parts, here = self._pieces(start, stop)
        bounds, factors = self._bounds[here], self._factors[here]
        return torch.as_tensor(ternary_parts.encode(parts, bounds, factors, self._key, self._first + start, out))

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int:
        """Return the bytes of a message; see ``Stream``."""
        return self._bytes(start, stop, workers) if stop > start else 0

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution; see ``Stream``."""
        if stop > start:
            self._sums[start, stop] = [self.encode(start, stop, 1, buffers=buffers)]

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace elements by the sum of all messages; see ``Stream``."""
        if stop == start:
            return
        total = messages[0]
        if len(messages) > 1:
            out = buffers.take(self._bytes(start, stop, len(messages)))
            total = torch.as_tensor(ternary_parts.add(messages, stop - start, out))
        parts, here = self._pieces(start, stop)
        ternary_parts.decode(total, parts, self._means[here], past_caches=self._past_caches)

    def _bytes(self, start: int, stop: int, workers: int) -> int:
        if workers not in self._kinds:
            self._kinds[workers] = self._codec.summing(workers)
        return codecs.max_payload_bytes(self._kinds[workers], stop - start)
