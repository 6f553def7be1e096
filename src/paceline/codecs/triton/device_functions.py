"""Device functions that kernels share: the draw, the last step of a decoder, bit planes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def uniform24(low, high, next_high, begin, first, k):
    """Draw ``counter.uniform24`` for elements ``first + k`` of a call (uint32). The other arguments are from
    ``launch.draws``."""
    base = begin.to(tl.int64) + first
    at = (base & 0xFFFFFFFF).to(tl.uint32)
    x = at + k.to(tl.uint32)
    second = tl.where((x < at) | (base >= 1 << 32), next_high, high).to(tl.uint32, bitcast=True)
    x = x ^ low.to(tl.uint32, bitcast=True)
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ second
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    x = x ^ (x >> 16)
    return x >> 8


@triton.jit
def put(out, k, values, mask, MODE: tl.constexpr):
    """Replace, add to or subtract from ``out[k]`` (codec.SET, ADD, SUBTRACT)."""
    if MODE == 0:
        tl.store(out + k, values, mask=mask)
    elif MODE == 1:
        tl.store(out + k, tl.load(out + k, mask=mask, other=0.0) + values, mask=mask)
    else:
        tl.store(out + k, tl.load(out + k, mask=mask, other=0.0) - values, mask=mask)


@triton.jit
def refuse(state, bad):
    """Record a refusal in the state if any element is ``bad``. Concurrent programs write the same word."""
    tl.store(state + 1, 1, mask=tl.max(bad.to(tl.int32), axis=0) > 0)


@triton.jit
def store_plane(body, bits, first, n, plane, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Store bit plane ``plane`` of ``WIDTH`` for the elements from ``first`` on (a multiple of 64); ``bits`` are TILE int32, 0
    or 1."""
    words = tl.sum(bits.reshape(TILE // 32, 32) << tl.arange(0, 32)[None, :], axis=1)
    w = tl.arange(0, TILE // 32)
    here = body + first // 64 * (8 * WIDTH)
    whole = n // 64 - first // 64
    block = w // 2
    places = here.to(tl.pointer_type(tl.int32)) + block * (2 * WIDTH) + 2 * plane + w % 2
    tl.store(places, words, mask=block < whole)
    short = (n % 64 + 7) // 8  # bytes of a plane of the last, short block
    b = tl.arange(0, 4)
    at = (w % 2 * 4)[:, None] + b[None, :]
    parts = (words[:, None] >> (8 * b)[None, :]) & 255
    tail = (block[:, None] == whole) & (at < short)
    tl.store(here + block[:, None] * (8 * WIDTH) + plane * short + at, parts.to(tl.uint8), mask=tail)


@triton.jit
def load_plane(body, first, n, k, mask, plane, WIDTH: tl.constexpr):
    """Invert ``store_plane``: int32 0 or 1 for each element ``first + k``."""
    here = body + first // 64 * (8 * WIDTH)
    size = tl.where(k // 64 < n // 64 - first // 64, 8, (n % 64 + 7) // 8)
    byte = tl.load(here + k // 64 * (8 * WIDTH) + plane * size + k % 64 // 8, mask=mask, other=0)
    return (byte.to(tl.int32) >> k % 8) & 1
