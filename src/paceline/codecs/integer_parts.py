"""Messages of int8 and int4, encoded from and decoded into the gradients of several tensors by native kernels.

A message's elements are those of the tensors, one after the other. They are read in place. A sum is formed block by block while
the next message is written, and a mean is written in place. Bytes and values are those that ``api.encode`` and ``api.decode``
give for a concatenated copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.array_types import F32, Bytes
from paceline.codecs import counter, envelopes, native
from paceline.codecs.codec import Codec
from paceline.codecs.container import HEADER_BYTES, PayloadError
from paceline.codecs.reference.integer import Int4, Int8, Integer


def serves(codec: Codec) -> bool:
    """Return whether this module supports the exchange of this codec on this machine."""
    return type(codec) in (Int8, Int4) and native.available()


def encode(codec: Integer, parts: Sequence[F32], more: Sequence[Any], key: counter.Key, start: int, out: Any) -> Bytes:
    """Encode the elements of ``parts`` plus those of the messages ``more``, added in order.

    Args:
        parts: contiguous fp32 arrays, which stay as they are.
        key, start, out: as of ``api.encode``.

    Raises:
        ValueError: NaN or infinity.
        PayloadError: one of ``more`` is damaged, of another codec or block, or of another length.
    """
    count = sum(part.size for part in parts)
    target = envelopes.room(out, codec, count)
    bodies = [_open(codec, message, count) for message in more]
    native.integer_parts_encode(codec, parts, bodies, target[HEADER_BYTES:], key, start)
    return envelopes.seal(out, target, codec, count)


def decode(codec: Integer, messages: Sequence[Any], parts: Sequence[F32], divisor: int, *, past_caches: bool = False) -> None:
    """Replace ``parts`` by the sum of the messages, added in order, divided by ``divisor``.

    Args:
        past_caches: see ``native.parts_decode``.

    Raises:
        PayloadError: as ``encode``; the parts are then unchanged.
    """
    count = sum(part.size for part in parts)
    bodies = [_open(codec, message, count) for message in messages]
    native.integer_parts_decode(codec, bodies, parts, divisor, past_caches)


def _open(codec: Integer, message: Any, count: int) -> Bytes:
    """Return the body of a message after a check of codec, length and checksum."""
    header, sums, body = envelopes.opened(message)
    if header.codec != codec.code:
        raise PayloadError(f"a payload of codec number {header.codec}, not of {codec.name!r}")
    block = codec.of(header.parameters).block
    if block != codec.block:
        raise PayloadError(f"blocks of {block} elements, where this rank has {codec.block}: give every rank the same options")
    envelopes.check(header, sums, body, codec, count)
    return body
