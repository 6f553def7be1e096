"""GPU kernels of the largest magnitude and the sums for a standard deviation, in the order that ``moments.sums`` defines."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from paceline.codecs.moments import BLOCK, LANES
from paceline.codecs.triton.launch import TILE, run, tiles

_BLOCKS = 8  # of one program: with 16 lanes each, one lane a thread
_UNROLLED = 8  # rows whose loads are under way together


@triton.jit
def _peaks(x, n, partials, TILE: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * TILE
    k = tl.arange(0, TILE)
    bits = tl.load(x.to(tl.pointer_type(tl.int32)) + first + k, mask=k < n - first, other=0)
    tl.store(partials + tl.program_id(0), tl.max(bits & 0x7FFFFFFF, axis=0))


@triton.jit
def _ordered(values, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the sum of each row from left to right. Picking one lane is exact: all others count as zero."""
    lane = tl.arange(0, LANES)
    total = tl.zeros((BLOCKS,), tl.float64)
    for k in tl.static_range(LANES):
        total += tl.sum(tl.where(lane[None, :] == k, values, 0.0), axis=1)
    return total


@triton.jit
def _sums(
    x,
    y,
    n,
    first_out,
    second_out,
    SHIFTED: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLLED: tl.constexpr,
    LANES: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Compute sums of blocks of ROWS * LANES: of ``x - x[0]`` and its square if SHIFTED, else of ``x`` and ``y`` (fp64)."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    at = (block * (ROWS * LANES))[:, None] + tl.arange(0, LANES)[None, :]
    shift = tl.load(x).to(tl.float64)
    firsts = tl.zeros((BLOCKS, LANES), tl.float64)
    seconds = tl.zeros((BLOCKS, LANES), tl.float64)
    for row in range(0, ROWS, UNROLLED):
        for step in tl.static_range(UNROLLED):
            k = at + (row + step) * LANES
            if SHIFTED:
                d = tl.where(k < n, tl.load(x + k, mask=k < n, other=0.0).to(tl.float64) - shift, 0.0)
                firsts += d
                seconds += d * d
            else:
                firsts += tl.load(x + k, mask=k < n, other=0.0)
                seconds += tl.load(y + k, mask=k < n, other=0.0)
    blocks = tl.cdiv(n, ROWS * LANES)
    tl.store(first_out + block, _ordered(firsts, LANES, BLOCKS), mask=block < blocks)
    tl.store(second_out + block, _ordered(seconds, LANES, BLOCKS), mask=block < blocks)


def _peak(x: torch.Tensor) -> torch.Tensor:
    """Return the bits of the largest magnitude (int32, one element). NaN has the largest bits of all."""
    n = x.shape[0]
    partials = torch.empty(tiles(n), dtype=torch.int32, device=x.device)
    run(_peaks, tiles(n), x, n, partials, TILE=TILE)
    return partials.amax()


def peak(x: torch.Tensor) -> float:
    """Return max |x|; see ``moments.Statistics``. Waits for 4 bytes."""
    return float(np.int32(_peak(x).item()).view(np.float32)) if x.shape[0] else 0.0


def sums(x: torch.Tensor) -> tuple[float, float, float]:
    """Return the sums for a standard deviation; see ``moments.Statistics``. Waits for 24 bytes."""
    if x.shape[0] == 0:
        return 0.0, 0.0, 0.0
    magnitude, first, second = _sums_of(x).tolist()
    return magnitude, first, second


def queued(x: torch.Tensor) -> torch.Tensor:
    """Return standard deviation and largest magnitude, (2,) fp32, with the bits of ``moments.moments``, without waiting."""
    n = x.shape[0]
    if n == 0:
        return torch.zeros(2, dtype=torch.float32, device=x.device)
    magnitude, first, second = _sums_of(x).unbind()
    sigma = ((second - first * first / n).clamp_min(0.0) / n).sqrt()  # fp64, one rounding each, as in NumPy
    finite = magnitude.isfinite()
    return torch.stack([sigma.where(finite, torch.nan), magnitude.where(finite, torch.inf)]).float()


def _sums_of(x: torch.Tensor) -> torch.Tensor:
    """Return largest magnitude and both sums, (3,) fp64, of at least one element."""
    n = x.shape[0]
    firsts, seconds, shifted = x, x, True
    while shifted or n > 1:
        blocks = tiles(n, BLOCK)
        totals = torch.empty((2, blocks), dtype=torch.float64, device=x.device)
        run(
            _sums,
            tiles(blocks, _BLOCKS),
            firsts,
            seconds,
            n,
            totals[0],
            totals[1],
            SHIFTED=shifted,
            ROWS=BLOCK // LANES,
            UNROLLED=_UNROLLED,
            LANES=LANES,
            BLOCKS=_BLOCKS,
        )
        firsts, seconds, n, shifted = totals[0], totals[1], blocks, False
    largest = _peak(x).view(torch.float32).double()
    return torch.stack([largest, firsts[0], seconds[0]])
