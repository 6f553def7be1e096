"""Streams of one codec during an exchange, which encodes, adds and replaces parts of them without knowing the format.

In every exchange a rank encodes each position exactly once per step: as its own contribution, as a partial sum of a ring, or as
the final sum that it owns. With error feedback the rank keeps the error of this encoding, so *delivered + residuals* always
equals *gradients + residuals before* (Stich et al. 2018, Sparsified SGD with Memory; Karimireddy
et al. 2019, Error Feedback Fixes SignSGD).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from paceline import codecs
from paceline.codecs import Codec, PayloadError, deferred
from paceline.codecs.arrays import on_host
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

    def encode_each(
        self, spans: Sequence[tuple[int, int]], workers: int, exact: bool = False, buffers: Buffers = FRESH
    ) -> list[torch.Tensor]:
        """Return ``encode`` of each span of elements, with one wait for a GPU at most."""

    def length(self, start: int, stop: int, workers: int, exact: bool = False) -> int | None:
        """Return the bytes of any rank's message for these elements; None if they depend on the values.

        It is then None even without elements, because either all ranks announce lengths or none does.
        """

    def settle(self, start: int, stop: int, buffers: Buffers = FRESH) -> None:
        """Prepare this rank's contribution for a sum without a message, before ``add``."""

    def add(self, message: torch.Tensor, start: int, stop: int, workers: int = 1) -> None:
        """Add another rank's message, a sum of ``workers``. Raises PayloadError for a damaged one.

        A stream on a GPU raises it only in ``settle_checks``; so does ``set``.
        """

    def set(self, message: torch.Tensor, start: int, stop: int, workers: int = 1, exact: bool = False) -> None:
        """Replace the elements by a message; the arguments are those of its ``encode``. Raises as ``add``."""

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
        self.checks = None if on_host(values) else deferred.Checks(values)

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.values.shape[0]

    def encode(self, start: int, stop: int, workers: int, exact: bool = False, buffers: Buffers = FRESH) -> torch.Tensor:
        """Return the message; see ``Stream``. It is fp32 if a codec without exact sums would take more bytes."""
        if stop == start:
            return NOTHING
        if self.checks is not None:
            return self.encode_each([(start, stop)], workers, exact, buffers)[0]
        values = (self._own if workers == 1 else self.values)[start:stop]
        self._pad(values, start, stop)
        codec = self._exact if exact else self.codec.summing(workers)
        out = buffers.take(codecs.max_payload_bytes(codec, stop - start), values.device)
        message = _encode(codec, values, self._key, self._first + start, out)
        if not exact and self._too_long(message.numel(), stop - start):
            message = _encode(PLAIN, values, self._key, 0, out)
        self._keep_error(message, start, stop, workers, exact, buffers)
        return message

    def encode_each(
        self, spans: Sequence[tuple[int, int]], workers: int, exact: bool = False, buffers: Buffers = FRESH
    ) -> list[torch.Tensor]:
        """Return several messages; see ``Stream``."""
        if self.checks is None:
            return [self.encode(*span, workers, exact, buffers) for span in spans]
        wanted = self._exact if exact else self.codec.summing(workers)
        source = self._own if workers == 1 else self.values
        messages = dict.fromkeys(range(len(spans)), NOTHING)
        by_codec: dict[Codec, list[int]] = {}
        for index, (start, stop) in enumerate(spans):
            if stop > start:
                self._pad(source[start:stop], start, stop)
                by_codec.setdefault(self._sent_as(wanted, stop - start), []).append(index)
        for codec, indices in by_codec.items():
            pieces = [(source[slice(*spans[i])], self._first + spans[i][0]) for i in indices]
            rooms = [buffers.take(codecs.max_payload_bytes(codec, values.shape[0]), values.device) for values, _ in pieces]
            messages |= zip(indices, self.checks.encode(codec, pieces, self._key, rooms), strict=True)
        for index, (start, stop) in enumerate(spans):
            if not exact and self._too_long(messages[index].numel(), stop - start):  # a length that depends on the values
                room = buffers.take(_dense_bytes(stop - start), source.device)
                messages[index] = self.checks.encode(PLAIN, [(source[start:stop], 0)], self._key, [room])[0]
            if stop > start:
                self._keep_error(messages[index], start, stop, workers, exact, buffers)
        return list(messages.values())

    def _sent_as(self, codec: Codec, count: int) -> Codec:
        """Return fp32's codec instead of one whose messages are all longer."""
        length = codecs.payload_bytes(codec, count)
        return PLAIN if codec is not self._exact and length is not None and self._too_long(length, count) else codec

    def _too_long(self, length: int, count: int) -> bool:
        """Return whether fp32 takes fewer bytes. A message whose length tells its codec is never as long as fp32."""
        longest = _dense_bytes(count) - (not self._fixed)
        return count > 0 and length > longest and not self.codec.exact_sums

    def _keep_error(self, message: torch.Tensor, start: int, stop: int, workers: int, exact: bool, buffers: Buffers) -> None:
        """Subtract the sent values from the residual."""
        if self.residual is None:
            return
        left = self.residual[start:stop]
        if workers > 1:
            left.copy_(self.values[start:stop])
        before = None if self.velocity is None else buffers.floats(stop - start, left.device).copy_(left)
        if self.checks is None:
            codecs.decode(message, left, codecs.SUBTRACT)
        else:
            self.checks.decode(self._codec_of(message, stop - start, workers, exact), message, left, codecs.SUBTRACT)
        if self.velocity is not None and before is not None:
            # Sent elements are those that changed: rounding leaves a residual too.
            self.velocity[start:stop].mul_(torch.eq(left, before, out=before))

    def _codec_of(self, message: torch.Tensor, count: int, workers: int, exact: bool) -> Codec:
        """Return the codec of a message, which the host does not read."""
        codec = self._exact if exact else self.codec.summing(workers)
        if exact or self._fixed:
            return self._sent_as(codec, count)
        return PLAIN if message.numel() >= _dense_bytes(count) else codec

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

    def add(self, message: torch.Tensor, start: int, stop: int, workers: int = 1) -> None:
        """Add a message; see ``Stream``."""
        self._decode(message, start, stop, codecs.ADD, workers, False, not self.codec.exact_sums)

    def set(self, message: torch.Tensor, start: int, stop: int, workers: int = 1, exact: bool = False) -> None:
        """Replace elements by a message; see ``Stream``."""
        self._decode(message, start, stop, codecs.SET, workers, exact, True)

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

    def _decode(self, message: torch.Tensor, start: int, stop: int, mode: int, workers: int, exact: bool, dense: bool) -> None:
        if not message.numel() and start == stop:
            return
        kinds = (*self._kinds, Fp32, type(self._exact)) if dense else self._kinds
        try:
            if self.checks is None:
                codecs.decode(message, self.values[start:stop], mode, only=kinds)
            else:
                codec = self._codec_of(message, stop - start, workers, exact)
                self.checks.decode(codec, message, self.values[start:stop], mode)
        except ValueError as error:
            raise PayloadError(str(error)) from error


def are_queued(streams: Iterable[Stream]) -> bool:
    """Return whether all streams are encoded on a GPU, without waiting for it."""
    return all(isinstance(s, CodecStream) and s.checks is not None for s in streams)


def settle_checks(streams: Iterable[Stream]) -> None:
    """Wait once for a GPU's checks of all messages of some streams. Raises PayloadError for a damaged message."""
    deferred.settle([s.checks for s in streams if isinstance(s, CodecStream) and s.checks is not None])


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
