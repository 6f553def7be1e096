"""Stream of int8 and int4 without a packed copy: from the gradients into messages, and from messages into the gradients.

Each gradient is read twice (its largest magnitude, its codes) and written once, as a mean. Sums of messages are formed block by
block while the next message is written; no sum is stored as fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paceline import codecs
from paceline.codecs import Codec, integer_parts
from paceline.codecs.container import HEADER_BYTES
from paceline.codecs.counter import Key
from paceline.codecs.reference.integer import Integer
from paceline.training.exchanges.gradients.tensor_layout import GradientSlice
from paceline.training.exchanges.streams.encoded_streams import CodecStream
from paceline.training.exchanges.streams.parts_stream import PartsStream, lie_flat
from paceline.training.exchanges.wires.collectives import NOTHING
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


def fits(codec: Codec, parts: Sequence[GradientSlice]) -> bool:
    """Return whether an ``IntegerStream`` can exchange these gradients."""
    return integer_parts.serves(codec) and lie_flat(parts)


class IntegerStream(PartsStream):
    """A ``Stream`` of ``int8`` or ``int4`` whose elements are the gradients themselves. It leaves means in them, not sums.

    Args:
        parts: gradients, one after the other, for which ``fits`` holds.
        key, first: as of ``PartsStream``.
        divisor: workers of the mean.
        gaps: as of ``PartsStream``.
    """

    def __init__(
        self,
        codec: Codec,
        parts: Sequence[GradientSlice],
        key: Key,
        first: int,
        divisor: int,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__(parts, key, first, gaps)
        assert isinstance(codec, Integer)
        self.block = codec.block
        self._codec, self._divisor = codec, divisor
        self._few: dict[tuple[int, int], CodecStream] = {}

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message; see ``PartsStream``."""
        assert not exact, "an exchange with dense pulls has another stream"
        if stop == start:
            return NOTHING
        if few := self._few_elements(start, stop):
            return few.encode(0, few.count, workers, buffers=buffers)
        more = self._sums.pop((start, stop)) if workers > 1 else []
        out = buffers.take(codecs.max_payload_bytes(self._codec, stop - start))
        parts, _ = self._pieces(start, stop)
        return torch.as_tensor(integer_parts.encode(self._codec, parts, more, self._key, self._first + start, out))

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int:
        """Return the bytes of a message; see ``Stream``."""
        count = stop - start
        return min(codecs.max_payload_bytes(self._codec, count), HEADER_BYTES + 4 * count) if count else 0

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution; see ``Stream``."""
        self._sums[start, stop] = []

    def add(self, message: torch.Tensor, start: int, stop: int, workers: int = 1) -> None:
        """Add a message; see ``PartsStream``."""
        if few := self._few_elements(start, stop):
            few.add(message, 0, few.count)
        else:
            super().add(message, start, stop)

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace elements by the sum of all messages; see ``Stream``."""
        if stop == start:
            return
        parts, _ = self._pieces(start, stop)
        if few := self._few_elements(start, stop):
            few.set_sum(messages, 0, few.count)
            means = few.values.numpy() / np.float32(self._divisor)
            for part, mean in zip(parts, np.split(means, np.cumsum([p.size for p in parts])[:-1]), strict=True):
                part[:] = mean
        else:
            integer_parts.decode(self._codec, messages, parts, self._divisor, past_caches=self._past_caches)

    def _few_elements(self, start: int, stop: int) -> CodecStream | None:
        """Return a general stream if the elements are so few that they are sent as fp32, else None."""
        if codecs.max_payload_bytes(self._codec, stop - start) <= HEADER_BYTES + 4 * (stop - start):
            return None
        if (start, stop) not in self._few:
            copy = torch.from_numpy(np.concatenate(self._pieces(start, stop)[0]))
            self._few[start, stop] = CodecStream(self._codec, copy, self._key, self._first + start)
        return self._few[start, stop]
