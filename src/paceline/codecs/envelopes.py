"""Payloads for fused passes that write and read bodies themselves: allocation, header, checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Bytes
from paceline.codecs import arrays, container, native
from paceline.codecs.codec import Codec
from paceline.codecs.container import HEADER_BYTES, Header, PayloadError


def room(out: Any, codec: Codec, count: int) -> Bytes:
    """Return the part of ``out`` that the payload of ``count`` elements needs, for a codec of fixed payload size.

    Raises:
        ValueError: ``out`` is too small, or no array as ``api.encode`` takes.
    """
    size = HEADER_BYTES + codec.body_range(count)[1]
    target: Bytes = arrays.writable(out, _HOST, ("uint8",))
    if target.shape[0] < size:
        raise ValueError(f"out has {target.shape[0]} bytes; {count} elements take {size}")
    return target[:size]


def seal(out: Any, target: Bytes, codec: Codec, count: int) -> Bytes:
    """Write the header in front of the body in ``target`` (from ``room``). Returns the payload, a view of ``out``."""
    head = container.header_bytes(Header(codec.code, count, codec.parameters()))
    container.write_header(target, head, native.checksum(head, target[HEADER_BYTES:]))
    payload: Bytes = out[: target.size]
    return payload


def opened(message: Any) -> tuple[Header, tuple[int, int], Bytes]:
    """Return header, expected checksums and body of a payload on the host. Raises PayloadError as ``container.read_header``."""
    data: Bytes = arrays.as_bytes(message)
    return *container.read_header(data[:HEADER_BYTES].tobytes()), data[HEADER_BYTES:]


def check(header: Header, sums: tuple[int, int], body: Bytes, codec: Codec, count: int) -> None:
    """Raise PayloadError unless the payload has ``count`` elements, the right length and correct checksums."""
    if header.elements != count or body.size != codec.body_range(count)[1]:
        raise PayloadError(f"{header.elements} elements in {body.size} bytes, {count} are expected")
    if native.checksum(container.header_bytes(header), body) != sums:
        raise PayloadError(container.CHANGED)


_HOST = np.empty(0, np.uint8)
