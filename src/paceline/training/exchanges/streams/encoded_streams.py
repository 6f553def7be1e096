"""Streams of one codec during an exchange, which encodes, adds and replaces parts of them without knowing the format.

In every exchange a rank encodes each position exactly once per step: as its own contribution, as a partial sum of a ring, or as
the final sum that it owns. With error feedback the rank keeps the error of this encoding, so *delivered + residuals* always
equals *gradients + residuals before* (Stich et al. 2018, Sparsified SGD with Memory; Karimireddy
et al. 2019, Error Feedback Fixes SignSGD).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import torch

from paceline import codecs
from paceline.codecs import Codec, PayloadError
from paceline.codecs.container import HEADER_BYTES
from paceline.codecs.counter import Key
from paceline.codecs.reference.dense import Fp32
from paceline.training.exchanges.wires.collectives import NOTHING
from paceline.training.exchanges.wires.message_buffers import FRESH, Buffers


class Stream(Protocol):
    """Stream of ``count`` fp32 elements, at first this rank's contribution, in the end the sum over the workers.

    Messages are written into ``buffers``. Messages of a chunk, and those given to ``add``, live until its exchange ends.
    """

    @property
    def count(self) -> int: ...

    @property
    def block(self) -> int:
        """Elements that are coded together: a message is whole blocks, or a part of one."""

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message for elements ``start`` to ``stop``, the sum of ``workers`` contributions; empty without elements.

        With ``exact`` the message is uncompressed.
        """

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """Return the bytes of any rank's message for these elements; None if they depend on the values.

        It is then None even without elements, because either all ranks announce lengths or none does.
        """

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution for a sum without a message, before ``add``."""

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Add another rank's message. Raises PayloadError for a damaged one."""

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Replace the elements by a message. Raises PayloadError for a damaged one."""

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace the elements by the sum of the messages of all workers, in this order. Raises as ``set``."""


class CodecStream:
    """Stream of a codec's messages. A sum is exact if the codec supports it; otherwise it is encoded again.

    Args:
        values: the gradients, (count,), scaled by ``codec.finish`` if ranks agree on a scale; ignored with a residual.
        residual: the gradients plus the error so far, (count,); each encoding subtracts the values that it sends.
        velocity: local momentum, (count,), which is set to 0 at sent elements.
        exact: codec of uncompressed messages, fp32 or bf16.
        key, first: random stream of the stochastic rounding; element k uses draw ``first + k``.
        gaps: padding, which is encoded like the mean magnitude before it if the codec's scales are means.
    """

    def __init__(
        self,
        codec: Codec,
        values: torch.Tensor,
        key: Key,
        first: int,
        residual: torch.Tensor | None = None,
        velocity: torch.Tensor | None = None,
        *,
        exact: Codec | None = None,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.codec, self.values, self.residual, self.velocity = codec, values, residual, velocity
        self._own = values if residual is None else residual  # this rank's contribution
        self._key, self._first = key, first
        self._exact = exact or PLAIN
        self.block = codec.alignment
        self._gaps = gaps if codec.pads_with_mean else ()
        self._fixed = codecs.payload_bytes(codec.summing(1), _MANY) is not None
        self._kinds = type(codec.summing(1)), type(codec.summing(_SEVERAL))

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.values.shape[0]

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message; see ``Stream``. It is fp32 if a codec without exact sums would take more bytes."""
        if stop == start:
            return NOTHING
        values = (self._own if workers == 1 else self.values)[start:stop]
        self._pad(values, start, stop)
        codec = self._exact if exact else self.codec.summing(workers)
        out = buffers.take(codecs.max_payload_bytes(codec, stop - start), values.device)
        message = _encode(codec, values, self._key, self._first + start, out)
        if message.numel() > _dense_bytes(stop - start) and not self.codec.exact_sums:
            message = _encode(PLAIN, values, self._key, 0, out)
        if self.residual is not None:
            left = self.residual[start:stop]
            if workers > 1:
                left.copy_(values)
            before = None if self.velocity is None else buffers.floats(stop - start, left.device).copy_(left)
            codecs.decode(message, left, codecs.SUBTRACT)
            if self.velocity is not None and before is not None:
                # Sent elements are those that changed: rounding leaves a residual too.
                self.velocity[start:stop].mul_(torch.eq(left, before, out=before))
        return message

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """Return the bytes of a message; see ``Stream``."""
        count = stop - start
        if exact:
            return codecs.payload_bytes(self._exact, count) if count else 0
        if not self._fixed:
            return None
        most = codecs.max_payload_bytes(self.codec.summing(workers), count)
        return (most if self.codec.exact_sums else min(most, _dense_bytes(count))) if count else 0

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution; see ``Stream``. With exact sums the contribution becomes the value that other ranks
        would receive; else it stays exact.

        Such a contribution encodes to itself: a magnitude of 1 is above every draw, 0 is below.
        """
        if self.codec.exact_sums:
            self.set(self.encode(start, stop, 1, buffers=buffers), start, stop)
        elif self._own is not self.values:
            self.values[start:stop] = self._own[start:stop]

    def add(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Add a message; see ``Stream``."""
        self._decode(message, start, stop, codecs.ADD, not self.codec.exact_sums)

    def set(self, message: torch.Tensor, start: int, stop: int) -> None:
        """Replace elements by a message; see ``Stream``."""
        self._decode(message, start, stop, codecs.SET, True)

    def set_sum(self, messages: Sequence[torch.Tensor], start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Replace elements by the sum of all messages; see ``Stream``."""
        for index, message in enumerate(messages):
            put = self.add if index else self.set
            put(message, start, stop)

    def _pad(self, values: torch.Tensor, start: int, stop: int) -> None:
        """Fill the padding among the elements ``start`` to ``stop`` with the mean magnitude of its block's elements."""
        for first, last in self._gaps[bisect_right(self._gaps, start, key=_stop_of) :]:
            if first >= stop:
                return
            begin = max(first - first % self.block, start)
            if begin < first:
                values[first - start : min(last, stop) - start] = values[begin - start : first - start].abs().mean()

    def _decode(self, message: torch.Tensor, start: int, stop: int, mode: int, dense: bool) -> None:
        if not message.numel() and start == stop:
            return
        kinds = (*self._kinds, Fp32, type(self._exact)) if dense else self._kinds
        try:
            codecs.decode(message, self.values[start:stop], mode, only=kinds)
        except ValueError as error:
            raise PayloadError(str(error)) from error


PLAIN = Fp32()
"""The usual codec of what is not compressed."""
_MANY = 1 << 20  # elements; a layout of variable size may have a single form for a few
_SEVERAL = 2  # workers: all sums of several workers have the same form


def _stop_of(gap: tuple[int, int]) -> int:
    return gap[1]


def _dense_bytes(count: int) -> int:
    return HEADER_BYTES + 4 * count


def _encode(codec: Codec, values: torch.Tensor, key: Key, start: int, out: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(codecs.encode(codec, values, key, start, out=out))
