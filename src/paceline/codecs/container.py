"""Header of every message: 32 bytes with checksums (docs/wire-format.md)."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from paceline.array_types import Bytes

_HEADER = struct.Struct("<4sBBHQ8sII")  # magic, version, codec, reserved, count, parameters, two checksums
_MAGIC, VERSION = b"PACE", 2
HEADER_BYTES = _HEADER.size
CHANGED = "the checksum does not match: the payload was changed on its way"
_CHECKED = 24  # bytes of the header in front of the checksums
_BLOCK = 1 << 16  # words: 256 KiB of products stays in the second-level cache


class PayloadError(ValueError):
    """Error for a payload that is truncated, corrupted, or of another codec or version."""


class Header(NamedTuple):
    """Header of a payload: number of the codec, number of elements, and 8 bytes of parameters."""

    codec: int
    elements: int
    parameters: bytes


def header_bytes(header: Header) -> bytes:
    """Return the 24 header bytes that the checksums cover."""
    packed = _HEADER.pack(_MAGIC, VERSION, header.codec, 0, header.elements, header.parameters.ljust(8, b"\0"), 0, 0)
    return packed[:_CHECKED]


def checksum(head: bytes, body: Bytes) -> tuple[int, int]:
    """Return the sum and the index-weighted sum, modulo 2**32, of 24 header bytes and the zero-padded body as 32-bit words.

    Any change within one word changes the first, a swap of two words the second. Unlike a CRC it is two sums, so vector
    units and GPUs compute it at memory speed (Fletcher 1982, IEEE Trans. Communications 30(1), with a power of two as modulus).
    """
    whole = body.size - body.size % 4
    tail = np.zeros(4, np.uint8)
    tail[: body.size - whole] = body[whole:]
    first = second = np.uint64(0)
    at = 1
    parts = [np.frombuffer(head, "<u4"), np.frombuffer(body[:whole].data, "<u4"), tail.view("<u4")[: body.size > whole]]
    for part in parts:
        for start in range(0, part.size, _BLOCK):
            words = part[start : start + _BLOCK].astype(np.uint64)
            with np.errstate(over="ignore"):
                first += words.sum(dtype=np.uint64)
                # Words and positions below 2**32 and 2**16: the block's weighted sum fits, its offset enters by the plain sum.
                weighted = (words * np.arange(words.size, dtype=np.uint64)).sum(dtype=np.uint64)
                second += weighted + np.uint64(at & 0xFFFFFFFF) * (words.sum(dtype=np.uint64) & np.uint64(0xFFFFFFFF))
            at += words.size
    return int(first) & 0xFFFFFFFF, int(second) & 0xFFFFFFFF


def write_header(payload: Bytes, head: bytes, sums: tuple[int, int]) -> None:
    """Fill the first 32 bytes of ``payload``."""
    payload[:_CHECKED] = np.frombuffer(head, np.uint8)
    payload[_CHECKED:HEADER_BYTES].view("<u4")[:] = sums


def read_header(data: bytes) -> tuple[Header, tuple[int, int]]:
    """Parse the header and the expected checksums from the first 32 bytes. Raises PayloadError for anything but version 2 of
    this format."""
    if len(data) < HEADER_BYTES:
        raise PayloadError(f"payload of {len(data)} bytes is shorter than the {HEADER_BYTES}-byte header")
    magic, version, codec, reserved, count, parameters, first, second = _HEADER.unpack(data[:HEADER_BYTES])
    if magic != _MAGIC or reserved:
        raise PayloadError(f"not a Paceline payload: it begins with {data[:4]!r}")
    if version != VERSION:
        raise PayloadError(f"wire format version {version}; this Paceline reads {VERSION}: install the same one on every rank")
    return Header(codec, count, parameters), (first, second)
