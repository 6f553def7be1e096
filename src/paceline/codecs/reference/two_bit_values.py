"""Values of two bits: a sign, and which of its chunk's two magnitudes (SparseLoCo, Sarfi et al. 2025, arXiv 2508.15706).

Elements of at least the chunk's mean magnitude take the mean of those as their magnitude, the others the mean of the others.
Sums are of integers, so they do not depend on an order. The caller feeds the error back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paceline.array_types import F32, Bytes
from paceline.codecs.container import PayloadError
from paceline.codecs.reference.blocks import lifts

_MAGNITUDE = np.uint32(0x7FFFFFFF)
_BF16_MOST = np.uint32(0x7F7F)


def size(kept: int, chunks: int) -> int:
    """Return the bytes of ``kept`` values of ``chunks`` chunks: two bfloat16 levels a chunk, and four values a byte."""
    return 4 * chunks + -(-kept // 4)


def pack(values: F32, of_chunk: int, out: Bytes) -> None:
    """Write finite values, ``of_chunk`` of each chunk; the last chunk may have fewer. Levels come first, the lower before."""
    chunks = -(-values.size // of_chunk) if values.size else 0
    levels, codes = out[: 4 * chunks].view("<u2").reshape(-1, 2), np.signbit(values).astype(np.uint8) << 1
    whole = values.size - values.size % max(1, of_chunk)
    parts = (values[:whole].reshape(-1, of_chunk), values[whole:].reshape(1, -1)) if values.size else ()
    at = 0
    for part in (p for p in parts if p.size):
        low, high, above = _levels(part)
        first = at // of_chunk
        levels[first : first + len(part), 0], levels[first : first + len(part), 1] = low, high
        codes[at : at + part.size] |= above.reshape(-1)
        at += part.size
    quads = np.zeros(-(-values.size // 4) * 4, np.uint8)
    quads[: values.size] = codes
    out[4 * chunks :] = (quads.reshape(-1, 4) << np.array([0, 2, 4, 6], np.uint8)).sum(1, dtype=np.uint8)


def unpack(packed: Bytes, kept: int, of_chunk: int) -> F32:
    """Read ``kept`` values. Raises PayloadError for levels or padding that ``pack`` does not write."""
    chunks = -(-kept // of_chunk) if kept else 0
    levels = packed[: 4 * chunks].view("<u2").reshape(-1, 2)
    if (levels > _BF16_MOST).any() or (levels[:, 0] > levels[:, 1]).any():
        raise PayloadError("a chunk's levels are out of order, negative or no finite numbers")
    quads = (packed[4 * chunks :, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1)
    if quads[kept:].any():
        raise PayloadError("the padding behind the last code is not zero")
    codes = quads[:kept].astype(np.uint32)
    words: NDArray[np.uint32] = levels[np.arange(kept) // of_chunk, codes & 1].astype(np.uint32) << 16
    return (words | codes >> 1 << 31).view(np.float32)


def bf16(x: F32) -> NDArray[np.uint32]:
    """Return the upper halves of finite values, rounded to nearest even, but never up to infinity."""
    magnitude = x.view(np.uint32) & _MAGNITUDE
    rounded: NDArray[np.uint32] = np.minimum(magnitude + np.uint32(0x7FFF) + (magnitude >> 16 & 1) >> 16, _BF16_MOST)
    return rounded | np.signbit(x).astype(np.uint32) << np.uint32(15)


def _levels(values: F32) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the lower and the upper level of each row, and which values take the upper one."""
    peak = np.abs(values).max(axis=1)
    lift = lifts(peak)
    exponent = ((peak * lift).view(np.uint32) >> 23).astype(np.int32)
    unit = (277 - np.maximum(exponent, 23) << 23).view(np.float32)  # as the means of ``sign``
    whole = (np.abs(values) * lift[:, None] * unit[:, None]).astype(np.int64)
    above = whole * values.shape[1] >= whole.sum(axis=1)[:, None]
    scale = unit.astype(np.float64) * lift
    many = above.sum(axis=1)
    high = ((whole * above).sum(axis=1) / many.astype(np.float64) / scale).astype(np.float32)
    few = np.maximum(values.shape[1] - many, 1)
    low = ((whole * ~above).sum(axis=1) / few.astype(np.float64) / scale).astype(np.float32)
    return bf16(low), bf16(high), above
