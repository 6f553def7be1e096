"""TernGrad and its wire format a second time, as plainly as they can be written; nothing here comes from ``paceline``."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, fsum, log2

import numpy as np

MASK = 2**64 - 1
CLIP = 2.5
"""Standard deviations: Wen et al. 2017 (TernGrad), section 3.3, "c = 2.5" for every network, data set and optimizer."""


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def draw(seed: int, step: int, rank: int, index: int) -> int:
    """The draw of one element, an integer below 2**24."""
    word = splitmix64(splitmix64(splitmix64(seed & MASK) ^ step) ^ rank)
    low, high = word % 2**32, word // 2**32
    if index >= 2**32:
        high ^= splitmix64(index // 2**32) % 2**32
    x = index % 2**32 ^ low
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
    x ^= high
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return (x ^ (x >> 16)) >> 8


def draws(seed: int, step: int, rank: int, start: int, count: int) -> np.ndarray:
    """``draw`` for consecutive elements below 2**32, in 64-bit arithmetic so that nothing wraps by itself."""
    word = splitmix64(splitmix64(splitmix64(seed & MASK) ^ step) ^ rank)
    x = np.arange(start, start + count, dtype=np.uint64) ^ np.uint64(word % 2**32)
    x = (x ^ x >> 16) * 0x7FEB352D % 2**32
    x ^= np.uint64(word // 2**32)
    x = (x ^ x >> 15) * 0x846CA68B % 2**32
    return (x ^ x >> 16) >> 8


def bound(gradient: np.ndarray, clip: float | None) -> np.float32:
    """min(max |g|, clip * sigma), with sigma about the mean; a constant tensor is not clipped."""
    largest = np.float32(np.abs(gradient).max())
    if clip is None:
        return largest
    d = gradient.astype(np.float64) - np.float64(gradient[0])
    variance = (fsum(d * d) - fsum(d) ** 2 / d.size) / d.size  # in exact sums: every good order of summation rounds to it
    sigma = np.float32(np.sqrt(max(variance, 0.0)))
    return min(largest, np.float32(clip) * sigma) if sigma > 0 else largest


def codes(gradient: np.ndarray, limit: np.float32, scale: np.float32, u: np.ndarray) -> np.ndarray:
    """sign(g) where u / 2**24 < |clipped g| / scale, else 0."""
    clipped = np.clip(gradient, -limit, limit)
    chosen = u.astype(np.float32) < np.abs(clipped) * (np.float32(2**24) / scale)
    return np.sign(clipped).astype(np.int64) * chosen


def terngrad_mean(
    gradients: Sequence[np.ndarray],
    seed: int,
    step: int,
    start: int,
    clip: float | None,
    workers: int = 0,
    scale: np.float32 | None = None,
) -> np.ndarray:
    """What every worker must hold in the end, of one tensor: ``gradients`` of every rank, flat; ``start`` its first draw.

    With ``workers`` the gradients are sums over the nodes that so many workers are in; ``scale`` where a part of a tensor
    takes that of the whole.
    """
    limits = [bound(g, clip) for g in gradients]
    scale = max(limits) if scale is None else scale
    if scale == 0:
        return np.zeros_like(gradients[0])
    total = sum(
        codes(g, limit, scale, draws(seed, step, rank, start, g.size))
        for rank, (g, limit) in enumerate(zip(gradients, limits, strict=True))
    )
    return (scale / np.float32(workers or len(gradients))) * np.asarray(total).astype(np.float32)


def pack(values: Sequence[int], width: int) -> bytes:
    """Blocks of 64; in a block one plane a bit, lowest first; in a plane element 8 i + j is bit j of byte i."""
    out = bytearray()
    for first in range(0, len(values), 64):
        block = values[first : first + 64]
        for bit in range(width):
            plane = bytearray(-(-len(block) // 8))
            for k, value in enumerate(block):
                plane[k // 8] |= (value >> bit & 1) << k % 8
            out += plane
    return bytes(out)


def push_body(ternary: Sequence[int]) -> bytes:
    """Two bits an element: nonzero, negative."""
    return pack([(code != 0) + 2 * (code < 0) for code in ternary], 2)


def sum_body(total: Sequence[int], workers: int) -> bytes:
    """``ceil(log2(2N + 1))`` bits an element of ``sum + N``."""
    return pack([value + workers for value in total], ceil(log2(2 * workers + 1)))


def header_and_body(code: int, count: int, parameters: bytes, body: bytes) -> bytes:
    """A whole payload: 24 bytes, two sums over them and the body as little-endian 32-bit words, the body."""
    head = b"PACE" + bytes([2, code, 0, 0]) + count.to_bytes(8, "little") + parameters.ljust(8, b"\0")
    covered = head + body + bytes(-len(body) % 4)
    words = [int.from_bytes(covered[at : at + 4], "little") for at in range(0, len(covered), 4)]
    plain, weighted = sum(words), sum(k * word for k, word in enumerate(words, 1))
    return head + b"".join((total % 2**32).to_bytes(4, "little") for total in (plain, weighted)) + body
