"""Encoding and decoding on a device without waiting for it. The host reads the results of all checks of an exchange at once.

A damaged message leaves the values that it should change. Later messages get a wrong checksum, so that no rank uses a sum
that lacks a contribution.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.codecs import backends, container
from paceline.codecs.codec import NON_FINITE, Codec
from paceline.codecs.container import HEADER_BYTES, PayloadError
from paceline.codecs.counter import Key

DAMAGED = f"{container.CHANGED}, or is made of a damaged one"

_STATES = 256
_GATE, _REFUSED, _WRITTEN = 0, 1, 2  # words of a state
_reading = threading.local()

Namer = Callable[[Any], str]
"""From a message, the words for it in an error."""


@contextmanager
def naming(namer: Namer) -> Iterator[None]:
    """Name the messages that are decoded within the block, in errors that are raised later."""
    before = getattr(_reading, "namer", None)
    _reading.namer = namer
    try:
        yield
    finally:
        _reading.namer = before


class Checks:
    """Checks of one exchange's messages on a device, whose results the host has not read yet."""

    def __init__(self, like: Any) -> None:
        """Begin with no messages. ``like``: any tensor on the device."""
        self._like = like
        self._blocks: list[Any] = []
        self._errors: list[Exception] = []  # of each state, if it has a 1
        self._used = _STATES

    def encode(self, codec: Codec, pieces: Sequence[tuple[Any, int]], key: Key, outs: Sequence[Any]) -> list[Any]:
        """Return the payload of each piece: contiguous fp32 values, and the draw of their first element.

        Waits once for all pieces if the codec's length depends on the values.

        Args:
            outs: memory for each payload, of at least ``max_payload_bytes``.
        """
        kernels = _kernels()
        lengths: list[int | None] = []
        states = []
        for (values, start), out in zip(pieces, outs, strict=True):
            states.append(self._state(ValueError(NON_FINITE)))
            room = out[: HEADER_BYTES + codec.body_range(values.shape[0])[1]]
            lengths.append(kernels.queue_write(codec, values, room, key, start, states[-1], self._blocks[-1][: self._used]))
        if None in lengths:
            written = _fetched([state[_WRITTEN:] for state in states])
            lengths = [int(row[0]) if length is None else length for row, length in zip(written, lengths, strict=True)]
        return [out[: HEADER_BYTES + (length or 0)] for out, length in zip(outs, lengths, strict=True)]

    def decode(self, codec: Codec, payload: Any, out: Any, mode: int) -> None:
        """Decode a payload of exactly this codec and of ``out``'s elements; ``out`` is contiguous fp32.

        Raises:
            PayloadError: the payload has another length than any of the codec.
        """
        namer: Namer | None = getattr(_reading, "namer", None)
        name = f"{namer(payload)}: " if namer else ""
        least, most = codec.body_range(out.shape[0])
        if not HEADER_BYTES + least <= payload.shape[0] <= HEADER_BYTES + most:
            raise PayloadError(f"{out.shape[0]} elements of {codec.name} do not take {payload.shape[0]} bytes")
        state = self._state(PayloadError(f"{name}{DAMAGED}"))
        _kernels().queue_read(codec, payload, out, mode, state)

    def _state(self, error: Exception) -> Any:
        """Return a new state; ``error`` is raised if a check fails."""
        if self._used == _STATES:
            block = self._like.new_zeros((_STATES, 3), dtype=_int64())
            if self._blocks:  # later messages must know of earlier failures
                block[0, :_WRITTEN] = self._blocks[-1][:, :_WRITTEN].amax(0)
                self._errors.append(self._errors[-1])
            self._used = len(self._blocks) and 1
            self._blocks.append(block)
        self._errors.append(error)
        self._used += 1
        return self._blocks[-1][self._used - 1]


def settle(checks: Iterable[Checks]) -> None:
    """Wait once for all checks. Raise PayloadError for the first damaged message, or ValueError for values without form."""
    blocks, errors = [], []
    for check in checks:
        for number, block in enumerate(check._blocks):
            last = number == len(check._blocks) - 1
            blocks.append(block[: check._used] if last else block)
        errors += check._errors
        check._blocks, check._errors, check._used = [], [], _STATES
    if blocks:
        for row, error in zip(_fetched(blocks), errors, strict=True):
            if row[_GATE] or row[_REFUSED]:
                raise error


def _fetched(parts: Sequence[Any]) -> list[list[int]]:
    """Return the rows of several tensors of the device in host memory, with one wait."""
    import torch

    rows: list[list[int]] = torch.cat([part.view(-1, part.shape[-1]) for part in parts]).tolist()
    return rows


def _kernels() -> backends.DeviceBackend:
    kernels = backends.triton()
    assert kernels is not None, "a tensor of the device came from somewhere"
    return kernels


def _int64() -> Any:
    import torch

    return torch.int64
