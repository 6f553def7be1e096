"""Bit planes of unsigned integers of any width: the layout of every packed message (docs/wire-format.md).

Blocks of 64 elements; within a block one 64-bit little-endian word per bit, lowest bit first. A last block of r < 64 elements
has planes of ceil(r / 8) bytes. So n elements of b bits take exactly ``b * ceil(n / 8)`` bytes, and a vector unit that
compares 64 lanes into a mask writes a plane with one store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Bools, Bytes

BLOCK = 64


def packed_bytes(count: int, width: int) -> int:
    """Return the bytes of ``count`` integers of ``width`` bits."""
    return width * -(-count // 8)


def pack_planes(planes: Sequence[Bools]) -> Bytes:
    """Pack bit planes (each of n booleans, lowest bit first) into a message."""
    n, width = len(planes[0]), len(planes)
    whole = n - n % BLOCK
    out = np.empty(packed_bytes(n, width), np.uint8)
    body, tail = out[: whole // 8 * width].reshape(-1, width, BLOCK // 8), out[whole // 8 * width :].reshape(width, -1)
    for k, plane in enumerate(planes):
        packed = np.packbits(plane, bitorder="little")
        body[:, k] = packed[: whole // 8].reshape(-1, BLOCK // 8)
        tail[k] = packed[whole // 8 :]
    return out


def unpack_planes(message: Bytes, count: int, width: int) -> list[Bytes]:
    """Invert ``pack_planes``: ``width`` arrays of ``count`` zeros and ones."""
    whole = count - count % BLOCK
    body = message[: whole // 8 * width].reshape(-1, width, BLOCK // 8)
    tail = message[whole // 8 * width :].reshape(width, -1)
    return [
        np.unpackbits(np.concatenate([body[:, k].reshape(-1), tail[k]]), count=count, bitorder="little") for k in range(width)
    ]


def pack(values: NDArray[np.unsignedinteger], width: int) -> Bytes:
    """Pack unsigned integers below ``2**width`` into a message."""
    return pack_planes([(values >> k & 1).astype(np.bool_) for k in range(width)])


def unpack(message: Bytes, count: int, width: int) -> NDArray[np.uint32]:
    """Invert ``pack``."""
    out = np.zeros(count, np.uint32)
    for k, plane in enumerate(unpack_planes(message, count, width)):
        out |= plane.astype(np.uint32) << np.uint32(k)
    return out
