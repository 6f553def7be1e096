"""INCEPTIONN's burst: eight 2-bit tags, then eight values of 0, 1, 2 or 4 bytes each (docs/wire-format.md).

Bursts follow each other without gaps, so the start of one is known only from the earlier ones. A directory in front of the
body therefore gives the bytes of every chunk of 16,384 values: chunks are written and read in parallel, and no length that
a damaged body claims leads outside its chunk.

A *lane* is a payload at the upper end of a 32-bit word: sign in bit 31, magnitude below it, unused bytes zero. In that form all
three sizes are one: a payload of b bytes is the lane's upper b bytes, little-endian.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import Bytes
from paceline.codecs.container import PayloadError

Words = NDArray[np.uint32]
_T = TypeVar("_T", bound=np.generic)

WIDTH = 8
CHUNK = 1 << 14
VECTOR_BYTES = 2
ENTRY_BYTES = 4
ZERO, BYTE, HALF, WORD = range(4)
"""The tags: payloads of 0, 1, 2 and 4 bytes."""
SIGN = np.uint32(1 << 31)

_BYTES = np.array([0, 1, 2, 4], np.int32)
_KEPT = np.arange(4) >= 4 - _BYTES[:, None]  # (tag, byte of the lane): whether it travels
_MASK = np.array([0, 0xFF000000, 0xFFFF0000, 0xFFFFFFFF], np.uint32)
_SHIFT = np.arange(0, 2 * WIDTH, 2, dtype=np.uint16)
_LENGTH = (_BYTES[np.arange(1 << 8)[:, None] >> np.arange(0, 8, 2) & 3]).sum(1, dtype=np.int32)  # of half a tag vector


def count_bursts(count: int) -> int:
    """Return the number of bursts for ``count`` values; the last may be padded."""
    return -(-count // WIDTH)


def count_chunks(count: int) -> int:
    """Return the number of chunks for ``count`` values, each with an entry in the directory."""
    return -(-count // CHUNK)


def body_range(count: int, payload: int) -> tuple[int, int]:
    """Return the least and most bytes of directory and bursts if a value takes up to ``payload`` bytes."""
    fixed = ENTRY_BYTES * count_chunks(count) + VECTOR_BYTES * count_bursts(count)
    return fixed, fixed + payload * count


def pack(tags: Bytes, lanes: Words) -> Bytes:
    """Pack values with these tags and lanes into bursts. The last burst is filled up with zero tags."""
    count = count_bursts(tags.size)
    tags, lanes = _filled(tags, count * WIDTH), _filled(lanes, count * WIDTH)
    vectors = np.bitwise_or.reduce(tags.reshape(-1, WIDTH).astype(np.uint16) << _SHIFT, axis=1)
    table = np.empty((count, VECTOR_BYTES + 4 * WIDTH), np.uint8)
    table[:, :VECTOR_BYTES] = vectors.astype("<u2").view(np.uint8).reshape(-1, VECTOR_BYTES)
    table[:, VECTOR_BYTES:] = lanes.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4 * WIDTH)
    kept = np.ones(table.shape, np.bool_)
    kept[:, VECTOR_BYTES:] = _KEPT[tags].reshape(-1, 4 * WIDTH)
    packed: Bytes = table[kept]
    return packed


def unpack(data: Bytes, count: int) -> tuple[Bytes, Words]:
    """Return tags and lanes of ``count`` values. Raises PayloadError if their bursts are shorter or longer than ``data``."""
    at = _starts(data, count_bursts(count))
    padded = np.zeros(data.size + 8, np.uint8)
    padded[4:-4] = data
    vectors = padded[at + 4].astype(np.uint16) | padded[at + 5].astype(np.uint16) << 8
    tags = (vectors[:, None] >> _SHIFT & 3).astype(np.uint8)
    ends = (at + VECTOR_BYTES)[:, None] + np.cumsum(_BYTES[tags], axis=1, dtype=np.int32)
    window = np.zeros(data.size + 1, np.uint32)  # at k: the four bytes in front of data[k]
    for k in range(4):
        window |= padded[k : k + window.size].astype(np.uint32) << np.uint32(8 * k)
    if tags.reshape(-1)[count:].any():
        raise PayloadError("values behind the last one")
    return tags.reshape(-1)[:count], (window[ends] & _MASK[tags]).reshape(-1)[:count]


def _starts(data: Bytes, count: int) -> NDArray[np.int32]:
    """Return the start of each burst. A burst is parsed at *every* byte to find its successor. Repeated doubling of that step
    finds the real ones."""
    size = data.size
    step = np.full(size + 2, size + 1, np.int32)  # size + 1: outside, for ever
    if size >= VECTOR_BYTES:
        after = np.arange(VECTOR_BYTES, size + 1, dtype=np.int32) + _LENGTH[data[:-1]] + _LENGTH[data[1:]]
        step[: size - 1] = np.minimum(after, size + 1)
    at = np.zeros(1, np.int32)
    while at.size <= count:
        at = np.concatenate([at, step[at]])
        if at.size <= count:
            step = step[step]
    if at[count] != size:
        raise PayloadError(f"{count} bursts do not fill the {size} bytes of their chunk")
    return at[:count]


def _filled(values: NDArray[_T], size: int) -> NDArray[_T]:
    if values.size == size:
        return values
    out = np.zeros(size, values.dtype)
    out[: values.size] = values
    return out


def write(body: Bytes, start: int, parts: list[Bytes]) -> int:
    """Write the directory to the front of ``body`` and the bursts from ``start`` on. Returns their end."""
    body[: ENTRY_BYTES * len(parts)] = np.array([p.size for p in parts], "<u4").view(np.uint8)
    for part in parts:
        body[start : start + part.size] = part
        start += part.size
    return start


def read(body: Bytes, start: int, count: int) -> list[Bytes]:
    """Split a body of ``count`` values into the bursts of each chunk. Raises PayloadError for a directory of another total."""
    ends = start + np.cumsum(np.frombuffer(body[: ENTRY_BYTES * count_chunks(count)].tobytes(), "<u4"), dtype=np.uint64)
    if (int(ends[-1]) if ends.size else start) != body.size:
        raise PayloadError("the directory of chunks does not add up to the body")
    return [body[a:b] for a, b in zip([start, *ends[:-1].tolist()], ends.tolist(), strict=True)] if ends.size else []
