"""GPU kernels of ternary values and their sums."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from paceline.codecs import counter
from paceline.codecs.reference.ternary import TINY_SCALE, Ternary, TernarySum
from paceline.codecs.triton.device_functions import load_plane, put, refuse, store_plane, uniform24
from paceline.codecs.triton.launch import TILE, draws, run, tiles


@triton.jit(do_not_specialize=["low", "high", "next_high", "begin"])
def _encode(x, body, n, bound, rate, low, high, next_high, begin, state, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    values = tl.load(x + first + k, mask=k < n - first, other=0.0)
    magnitude = tl.abs(values)
    refuse(state, (magnitude.to(tl.int32, bitcast=True) >= 0x7F800000))
    draw = uniform24(low, high, next_high, begin, first, k).to(tl.float32)
    nonzero = draw < tl.minimum(magnitude, bound) * rate
    store_plane(body, nonzero.to(tl.int32), first, n, 0, 2, TILE)
    store_plane(body, (nonzero & (values < 0)).to(tl.int32), first, n, 1, 2, TILE)


@triton.jit
def _decode(body, out, n, scale, state, MODE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    nonzero = load_plane(body, first, n, k, inside, 0, 2)
    negative = load_plane(body, first, n, k, inside, 1, 2)
    refuse(state, negative > nonzero)
    values = (nonzero - 2 * negative).to(tl.float32) * scale
    put(out + first, k, values, inside & (tl.load(state) == 0), MODE)


@triton.jit(do_not_specialize=["workers"])
def _sum_encode(x, body, n, workers, state, WIDTH: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    values = tl.load(x + first + k, mask=inside, other=0.0)
    good = tl.abs(values) <= workers.to(tl.float32)  # not of NaN
    refuse(state, good == 0)
    level = tl.where(inside & good, values, 0.0).to(tl.int32) + workers
    level = tl.where(inside, level, 0)  # padding is zero
    for plane in tl.static_range(WIDTH):
        store_plane(body, (level >> plane) & 1, first, n, plane, WIDTH, TILE)


@triton.jit(do_not_specialize=["workers"])
def _sum_decode(body, out, n, workers, unit, state, WIDTH: tl.constexpr, MODE: tl.constexpr, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    inside = k < n - first
    level = tl.zeros((TILE,), tl.int32)
    for plane in tl.static_range(WIDTH):
        level |= load_plane(body, first, n, k, inside, plane, WIDTH) << plane
    refuse(state, level > 2 * workers)
    put(out + first, k, (level - workers).to(tl.float32) * unit, inside & (tl.load(state) == 0), MODE)


def encode(codec: Ternary, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor) -> int:
    """Encode ternary values; see ``triton.Kernels``."""
    n, scale = x.shape[0], np.float32(codec.scale)
    rate = 0.0 if scale < TINY_SCALE else float(np.float32(2.0**24) / scale)  # no draw is below 0
    run(_encode, tiles(n), x, body, n, float(codec.largest), rate, *draws(key, start, n), state, TILE=TILE)
    return body.shape[0]


def decode(codec: Ternary, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode ternary values; see ``triton.Kernels``."""
    n = out.shape[0]
    run(_decode, tiles(n), body, out, n, float(np.float32(codec.scale)), state, MODE=mode, TILE=TILE)


def encode_sum(
    codec: TernarySum, x: torch.Tensor, body: torch.Tensor, key: counter.Key, start: int, state: torch.Tensor
) -> int:
    """Encode sums of ternary values; see ``triton.Kernels``."""
    n = x.shape[0]
    run(_sum_encode, tiles(n), x, body, n, codec.workers, state, WIDTH=codec.width, TILE=TILE)
    return body.shape[0]


def decode_sum(codec: TernarySum, body: torch.Tensor, out: torch.Tensor, mode: int, state: torch.Tensor) -> None:
    """Decode sums of ternary values; see ``triton.Kernels``."""
    n, unit = out.shape[0], float(codec.unit)
    run(_sum_decode, tiles(n), body, out, n, codec.workers, unit, state, WIDTH=codec.width, MODE=mode, TILE=TILE)
