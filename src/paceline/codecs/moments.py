"""Standard deviation and largest magnitude of a tensor, equal bit for bit everywhere because the order of additions is
defined."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

BLOCK, LANES = 4096, 16
"""Values of a block, and lanes that a block is added in."""


class Statistics(Protocol):
    """Statistics of a tensor that a backend computes."""

    def peak(self, x: Any) -> float:
        """max |x|; infinity or NaN if ``x`` contains one; 0 for no elements."""

    def sums(self, x: Any) -> tuple[float, float, float]:
        """Result of this module's ``sums``."""


class Moments(NamedTuple):
    """Standard deviation and largest magnitude of one tensor (both fp32)."""

    sigma: np.float32
    peak: np.float32

    @property
    def finite(self) -> bool:
        """True if every element is finite."""
        return bool(np.isfinite(self.peak))


def moments(x: Any, statistics: Statistics) -> Moments:
    """Return the standard deviation about the mean and max |x| of a 1-D fp32 array; zeros for an empty one."""
    largest, first, second = statistics.sums(x)
    if not np.isfinite(largest):
        return Moments(np.float32(np.nan), np.float32(np.inf))
    n = max(x.shape[0], 1)
    return Moments(np.float32(np.sqrt(max(second - first * first / n, 0.0) / n)), np.float32(largest))


def sums(x: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return max |x|, and the fp64 sums of ``x - x[0]`` and of its square, of a 1-D fp32 array; infinity or NaN if it has one.

    fp64 addition is not associative, so the order is part of the definition: within blocks of 4,096 values, value k is added
    to lane k mod 16, then the lanes are added in order; the blocks' sums are summed likewise, until one is left. Taking the
    first element off keeps a tensor far from zero exact (Chan, Golub, LeVeque 1983, The American Statistician 37(3), "shifted
    data") and makes a constant one have exactly zero variance, all in one pass over the memory.
    """
    if x.size == 0:
        return 0.0, 0.0, 0.0
    shift, room = np.float64(x[0]), 256 * BLOCK
    firsts, seconds = [], []
    with np.errstate(invalid="ignore"):
        for start in range(0, x.size, room):
            d = x[start : start + room].astype(np.float64) - shift
            firsts.append(_block_sums(d))
            seconds.append(_block_sums(d * d))
        return float(np.abs(x).max()), _total(np.concatenate(firsts)), _total(np.concatenate(seconds))


def _block_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    padded = np.zeros((-(-values.size // BLOCK), BLOCK // LANES, LANES))
    padded.reshape(-1)[: values.size] = values
    lanes = np.zeros((padded.shape[0], LANES))
    for row in range(padded.shape[1]):  # a loop, so that NumPy does not choose the order
        lanes += padded[:, row]
    total = np.zeros(padded.shape[0])
    for lane in range(LANES):
        total += lanes[:, lane]
    return total


def _total(values: NDArray[np.float64]) -> float:
    while values.size > 1:
        values = _block_sums(values)
    return float(values[0])
