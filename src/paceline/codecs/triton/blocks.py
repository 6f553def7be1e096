"""GPU kernels of codecs with one scale per block: int8, int4, fp8, sign. A program processes whole blocks: TILE elements, or
one larger block."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from paceline.codecs import counter
from paceline.codecs.reference.fp8 import Fp8
from paceline.codecs.reference.integer import Int4, Integer
from paceline.codecs.reference.sign import Sign
from paceline.codecs.triton.device_functions import load_plane, put, refuse, store_plane, uniform24
from paceline.codecs.triton.launch import TILE, draws, run, tiles


@triton.jit
def _lift(peak):
    """Return the factor of ``blocks.lifts``: 2**64 for a peak below 2**-64, else 1."""
    return tl.where(peak < 5.421010862427522e-20, 18446744073709551616.0, 1.0)


@triton.jit
def _peaks(x, first, left, state, ROWS: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr):
    """Return the largest magnitude of each of ROWS blocks from ``first``."""
    k = tl.arange(0, TILE)
    top = tl.zeros((TILE,), tl.int32)
    for step in range(STEPS):
        at = step * TILE + k
        bits = tl.load((x + first).to(tl.pointer_type(tl.int32)) + at, mask=at < left, other=0)
        top = tl.maximum(top, bits & 0x7FFFFFFF)
    refuse(state, top >= 0x7F800000)
    return tl.max(top.reshape(ROWS, TILE // ROWS), axis=1).to(tl.float32, bitcast=True)


@triton.jit
def _spread(of_rows, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Repeat one value per block for each of its elements."""
    return tl.broadcast_to(of_rows[:, None], (ROWS, TILE // ROWS)).reshape(TILE)


@triton.jit(do_not_specialize=["low", "high", "next_high", "begin"])
def _integer_encode(
    x,
    scales,
    codes,
    n,
    low,
    high,
    next_high,
    begin,
    state,
    LEVELS: tl.constexpr,
    NIBBLES: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * (STEPS * TILE)
    left = n - first
    peak = _peaks(x, first, left, state, ROWS, STEPS, TILE)
    row = tl.arange(0, ROWS)
    places = scales.to(tl.pointer_type(tl.float32)) + tl.program_id(0).to(tl.int64) * ROWS + row
    tl.store(places, peak, mask=row * (TILE // ROWS) < left)
    top = LEVELS * 16777216.0
    lift = _lift(peak)
    lifted = peak * lift
    rate = tl.where(peak > 0, tl.div_rn(tl.full((ROWS,), top, tl.float32), lifted), 0.0)
    larger = (rate.to(tl.int32, bitcast=True) + 1).to(tl.float32, bitcast=True)
    rate = tl.where((peak > 0) & (lifted * rate < top), larger, rate)
    lifts, rates = _spread(lift, ROWS, TILE), _spread(rate, ROWS, TILE)
    k = tl.arange(0, TILE)
    for step in range(STEPS):
        at = step * TILE + k
        values = tl.load(x + first + at, mask=at < left, other=0.0)
        scaled = tl.minimum(tl.abs(values) * lifts * rates, top)
        draw = uniform24(low, high, next_high, begin, first + step * TILE, k).to(tl.int32)
        # A NaN is no integer; its tensor is refused, and what is written does not count.
        code = (tl.where(scaled >= 0, scaled, 0.0).to(tl.int32) + draw) >> 24
        code = tl.where(at < left, tl.where(values.to(tl.int32, bitcast=True) < 0, -code, code), 0)
        if NIBBLES:
            pair = tl.sum((code & 15).reshape(TILE // 2, 2) << (4 * tl.arange(0, 2))[None, :], axis=1)
            byte = step * (TILE // 2) + tl.arange(0, TILE // 2)
            tl.store(codes + first // 2 + byte, pair.to(tl.uint8), mask=2 * byte < left)
        else:
            tl.store(codes.to(tl.pointer_type(tl.int8)) + first + at, code.to(tl.int8), mask=at < left)


@triton.jit
def _scales(scales, first, k, inside, state, BLOCK: tl.constexpr):
    """Load the scale of each element; refuse a negative, infinite or NaN scale."""
    here = scales.to(tl.pointer_type(tl.uint32)) + first // BLOCK
    bits = tl.load(here + (first % BLOCK + k) // BLOCK, mask=inside, other=0)
    refuse(state, bits >= 0x7F800000)
    return bits


@triton.jit
def _integer_decode(
    scales,
    codes,
    out,
    n,
    unit,
    state,
    NIBBLES: tl.constexpr,
    BLOCK: tl.constexpr,
    MODE: tl.constexpr,
    TILE: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    peak = _scales(scales, first, k, inside, state, BLOCK).to(tl.float32, bitcast=True)
    if NIBBLES:
        byte = tl.load(codes.to(tl.pointer_type(tl.int8)) + first // 2 + k // 2, mask=inside, other=0).to(tl.int32)
        code = tl.where(k % 2 == 0, (byte << 28) >> 28, byte >> 4)
        padding = (first + k == n - 1) & (n % 2 == 1) & (byte >> 4 != 0)
        refuse(state, (code == -8) | padding)
    else:
        code = tl.load(codes.to(tl.pointer_type(tl.int8)) + first + k, mask=inside, other=0).to(tl.int32)
        refuse(state, code == -128)
    put(out + first, k, code.to(tl.float32) * unit * peak, inside & (tl.load(state) == 0), MODE)


@triton.jit(do_not_specialize=["low", "high", "next_high", "begin"])
def _fp8_encode(
    x,
    scales,
    codes,
    n,
    low,
    high,
    next_high,
    begin,
    state,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
    TILE: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * (STEPS * TILE)
    left = n - first
    peak = _peaks(x, first, left, state, ROWS, STEPS, TILE).to(tl.int32, bitcast=True)
    field = (peak >> 23) - 8 + ((peak & 0x7FFFFF) > 0x600000).to(tl.int32)
    field = tl.minimum(tl.maximum(field, 1), 247)  # a tensor with NaN is refused: keep in range
    row = tl.arange(0, ROWS)
    places = scales.to(tl.pointer_type(tl.int32)) + tl.program_id(0).to(tl.int64) * ROWS + row
    tl.store(places, field << 23, mask=row * (TILE // ROWS) < left)
    inverses = _spread(((254 - field) << 23).to(tl.float32, bitcast=True), ROWS, TILE)
    tops = _spread(tl.where(field == 247, 240.0, 448.0), ROWS, TILE)
    k = tl.arange(0, TILE)
    for step in range(STEPS):
        at = step * TILE + k
        values = tl.load(x + first + at, mask=at < left, other=0.0)
        scaled = tl.minimum(tl.abs(values) * inverses, tops)
        draw = (uniform24(low, high, next_high, begin, first + step * TILE, k) >> 4).to(tl.int32)
        normal = ((scaled.to(tl.int32, bitcast=True) + draw) >> 20) - 960
        small = scaled < 0.015625
        whole = tl.where(small, scaled * 536870912.0, 0.0).to(tl.int32)
        code = tl.where(small, (whole + draw) >> 20, normal)
        code = code | tl.where(values.to(tl.int32, bitcast=True) < 0, 128, 0)
        tl.store(codes + first + at, code.to(tl.uint8), mask=at < left)


@triton.jit
def _fp8_decode(scales, codes, out, n, state, BLOCK: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    bits = _scales(scales, first, k, inside, state, BLOCK).to(tl.int32)
    refuse(state, inside & ((bits == 0) | (bits & 0x7FFFFF != 0) | (bits > 247 << 23)))
    code = tl.load(codes + first + k, mask=inside, other=0).to(tl.int32)
    magnitude = code & 127
    refuse(state, magnitude > tl.where(bits == 247 << 23, 0x77, 0x7E))
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal) * bits.to(tl.float32, bitcast=True)
    value = (value.to(tl.int32, bitcast=True) | ((code >> 7) << 31)).to(tl.float32, bitcast=True)
    put(out + first, k, value, inside & (tl.load(state) == 0), MODE)


@triton.jit
def _sign_encode(x, scales, planes, n, state, BLOCK: tl.constexpr, ROWS: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * (STEPS * TILE)
    left = n - first
    peak = _peaks(x, first, left, state, ROWS, STEPS, TILE)
    lift = _lift(peak)
    exponent = (peak * lift).to(tl.int32, bitcast=True) >> 23
    # 2**24 over the power of two above the peak, by its exponent field. (A tensor with NaN is refused: keep in range.)
    unit = ((277 - tl.minimum(tl.maximum(exponent, 23), 254)) << 23).to(tl.float32, bitcast=True)
    lifts, units = _spread(lift, ROWS, TILE), _spread(unit, ROWS, TILE)
    total = tl.zeros((ROWS,), tl.int64)
    k = tl.arange(0, TILE)
    for step in range(STEPS):
        at = step * TILE + k
        values = tl.load(x + first + at, mask=at < left, other=0.0)
        whole = tl.abs(values) * lifts * units
        whole = tl.where(whole < 16777216.0, whole, 0.0).to(tl.int64)
        total += tl.sum(whole.reshape(ROWS, TILE // ROWS), axis=1)
        negative = (values.to(tl.int32, bitcast=True) < 0) & (at < left)
        store_plane(planes, negative.to(tl.int32), first + step * TILE, n, 0, 1, TILE)
    row = tl.arange(0, ROWS)
    before = row * (TILE // ROWS)
    count = tl.maximum(tl.minimum(left - before, BLOCK), 1).to(tl.float64)
    mean = total.to(tl.float64) / count / (unit.to(tl.float64) * lift.to(tl.float64))
    places = scales.to(tl.pointer_type(tl.float32)) + tl.program_id(0).to(tl.int64) * ROWS + row
    tl.store(places, mean.to(tl.float32), mask=before < left)


@triton.jit
def _sign_decode(scales, planes, out, n, state, BLOCK: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    mean = _scales(scales, first, k, inside, state, BLOCK)
    bit = load_plane(planes, first, n, k, inside, 0, 1).to(tl.uint32)
    last = tl.load(planes + (n - 1) // 8).to(tl.int32)
    padding = (first + k == n - 1) & (n % 8 != 0) & (last >> n % 8 != 0)
    refuse(state, padding)
    values = (mean | (bit << 31)).to(tl.float32, bitcast=True)
    put(out + first, k, values, inside & (tl.load(state) == 0), MODE)


def _shape(block: int) -> dict[str, int]:
    """Return how a program processes its blocks: ROWS at once in a tile, or one in STEPS tiles."""
    return {"ROWS": max(TILE // block, 1), "STEPS": max(block // TILE, 1), "TILE": TILE}


def encode(codec: Integer, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode int8 or int4; see ``triton.Kernels``."""
    n, at = x.shape[0], codec.scale_bytes(x.shape[0])
    run(
        _integer_encode,
        tiles(n, max(TILE, codec.block)),
        x,
        body,
        body[at:],
        n,
        *draws(key, start, n),
        state,
        LEVELS=codec.levels,
        NIBBLES=isinstance(codec, Int4),
        **_shape(codec.block),
    )
    return body.shape[0]


def decode(codec: Integer, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode int8 or int4; see ``triton.Kernels``."""
    n, at = out.shape[0], codec.scale_bytes(out.shape[0])
    unit = float(np.float32(1) / np.float32(codec.levels))
    run(
        _integer_decode,
        tiles(n),
        body,
        body[at:],
        out,
        n,
        unit,
        state,
        NIBBLES=isinstance(codec, Int4),
        BLOCK=codec.block,
        MODE=mode,
        TILE=TILE,
    )


def encode_fp8(codec: Fp8, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode fp8; see ``triton.Kernels``."""
    n, at = x.shape[0], codec.scale_bytes(x.shape[0])
    programs = tiles(n, max(TILE, codec.block))
    run(_fp8_encode, programs, x, body, body[at:], n, *draws(key, start, n), state, **_shape(codec.block))
    return body.shape[0]


def decode_fp8(codec: Fp8, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode fp8; see ``triton.Kernels``."""
    n, at = out.shape[0], codec.scale_bytes(out.shape[0])
    run(_fp8_decode, tiles(n), body, body[at:], out, n, state, BLOCK=codec.block, MODE=mode, TILE=TILE)


def encode_sign(codec: Sign, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode signs; see ``triton.Kernels``."""
    n, at = x.shape[0], codec.scale_bytes(x.shape[0])
    run(
        _sign_encode,
        tiles(n, max(TILE, codec.block)),
        x,
        body,
        body[at:],
        n,
        state,
        BLOCK=codec.block,
        **_shape(codec.block),
    )
    return body.shape[0]


def decode_sign(codec: Sign, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode signs; see ``triton.Kernels``."""
    n, at = out.shape[0], codec.scale_bytes(out.shape[0])
    run(_sign_decode, tiles(n), body, body[at:], out, n, state, BLOCK=codec.block, MODE=mode, TILE=TILE)
