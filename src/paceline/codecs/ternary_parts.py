"""TernGrad's messages, encoded from and decoded into the gradients of several tensors by native kernels.

A message's elements are those of the tensors, one after the other. They are read in place, each tensor is clipped and
multiplied, and sums are written back multiplied. Messages are added without decoding them. The bytes are those that
``api.encode`` gives for the clipped, multiplied and concatenated values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.array_types import F32, Bytes
from paceline.codecs import counter, envelopes, native
from paceline.codecs.codec import NON_FINITE, Codec
from paceline.codecs.container import HEADER_BYTES, PayloadError
from paceline.codecs.reference.ternary import Ternary, TernarySum

_CODEC = Ternary(scale=1.0)


def serves(codec: Codec) -> bool:
    """Return whether this module supports the exchange of this codec on this machine."""
    return type(codec) is Ternary and native.available()


def encode(parts: Sequence[F32], bounds: F32, factors: F32, key: counter.Key, start: int, out: Any) -> Bytes:
    """Return the payload of one worker.

    Args:
        parts: contiguous fp32 arrays.
        bounds, factors: each part's elements are clipped to +-bound and multiplied by the factor. They are then at most 1, up
            to rounding.
        key, start: as of ``api.encode``.
        out: as of ``api.encode``.

    Raises:
        ValueError: NaN or infinity.
    """
    count = sum(part.size for part in parts)
    target = envelopes.room(out, _CODEC, count)
    body = target[HEADER_BYTES:]
    if native.parts_encode(parts, body, bounds, factors, key, start):
        raise ValueError(NON_FINITE)
    return envelopes.seal(out, target, _CODEC, count)


def add(messages: Sequence[Any], count: int, out: Any) -> Bytes:
    """Add messages of ``count`` elements exactly; each is from one worker or already a sum.

    Raises:
        PayloadError: a message that is damaged, not of these codecs or of another length.
    """
    opened = [_open(message, count) for message in messages]
    total = sum(max(workers, 1) for workers, _ in opened)
    codec = TernarySum(workers=total, scale=float(total))
    target = envelopes.room(out, codec, count)
    native.planes_sum([body for _, body in opened], [workers for workers, _ in opened], target[HEADER_BYTES:], count)
    return envelopes.seal(out, target, codec, count)


def decode(message: Any, parts: Sequence[F32], scales: F32, *, past_caches: bool = False) -> None:
    """Replace ``parts`` by a message of one worker or a sum, each part multiplied by its scale.

    Args:
        past_caches: see ``native.parts_decode``.

    Raises:
        PayloadError: as ``add``; the parts are then unchanged.
    """
    count = sum(part.size for part in parts)
    workers, body = _open(message, count)
    if workers == 0:  # a worker alone
        alone = add([message], count, np.empty(HEADER_BYTES + TernarySum(workers=1).body_range(count)[1], np.uint8))
        workers, body = 1, alone[HEADER_BYTES:]
    native.parts_decode(body, parts, scales, workers, past_caches)


def _open(message: Any, count: int) -> tuple[int, Bytes]:
    """Return the number of workers of a message (0: one worker's ternary values) and its checked body."""
    header, sums, body = envelopes.opened(message)
    kinds: dict[int, type[Ternary | TernarySum]] = {Ternary.code: Ternary, TernarySum.code: TernarySum}
    if header.codec not in kinds:
        raise PayloadError(f"a payload of codec number {header.codec}, not of 'ternary' or 'ternary-sum'")
    codec = kinds[header.codec].of(header.parameters)
    workers = codec.workers if isinstance(codec, TernarySum) else 0
    if codec.scale != max(workers, 1):
        raise PayloadError(f"a scale of {codec.scale}, where ranks have divided by a common one")
    envelopes.check(header, sums, body, codec, count)
    return workers, body
