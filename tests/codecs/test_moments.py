"""Standard deviation and largest magnitude of a tensor, in the order that is part of the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oracle
from paceline.codecs import decode, encode, get, moments_of, reference
from paceline.codecs.moments import moments, sums
from paceline.codecs.reference import ternary

BLOCK, LANES = 4096, 16
"""Values of a block of the sums, and the lanes of one: the order is part of the definition (csrc adds alike)."""


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 100, width=32)))
def test_moments_are_the_standard_deviation_and_the_largest_magnitude(x):
    m = moments_of(x)
    assert m.finite and m.peak == np.abs(x).max()
    wide = x.astype(np.float64)
    half_step = 2.0**-150  # of fp32 next to zero
    assert float(m.sigma) == pytest.approx(wide.std(), rel=1e-6, abs=1e-6 * float(np.abs(wide).max()) + half_step)
    assert ternary.clip_bound(m, 2.5) == oracle.bound(x, 2.5)
    assert ternary.clip_bound(m, None) == m.peak


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 50, 99])
def test_one_nan_or_infinity_anywhere_is_seen(bad, at):
    x = np.ones(100, np.float32)
    x[at] = bad
    assert not moments_of(x).finite


def test_the_largest_numbers_do_not_overflow():
    x = np.array([3e38, -3e38, 1e38, 0], np.float32)
    decoded = decode(encode(get("ternary"), x))
    assert decoded[0] == x[0] and decoded[1] == x[1] and decoded[3] == 0


@given(st.integers(0, 3 * BLOCK), st.floats(-1e3, 1e3, width=32))
def test_a_constant_has_no_variance(count: int, value: float) -> None:
    m = moments(np.full(count, value, np.float32), reference)
    assert m.finite and m.sigma == 0.0 and m.peak == (abs(np.float32(value)) if count else 0.0)


@pytest.mark.parametrize("count", [1, LANES - 1, LANES + 1, BLOCK, BLOCK + 1, 256 * BLOCK + 3])
def test_sums_are_those_of_exact_arithmetic_whatever_the_size(count: int) -> None:
    """Small whole numbers add up without rounding in any order."""
    x = (np.arange(count) % 7).astype(np.float32)
    shifted = x.astype(np.float64) - float(x[0])
    assert sums(x) == (float(x.max()), shifted.sum(), (shifted * shifted).sum())


def in_order(values: list[float]) -> float:
    """By the definition, one addition after another: value k of a block to lane k mod 16, lanes in order, then the blocks."""
    while len(values) > 1:
        totals = []
        for start in range(0, len(values), BLOCK):
            lanes = [0.0] * LANES
            for k, value in enumerate(values[start : start + BLOCK]):
                lanes[k % LANES] += value
            total = 0.0
            for lane in lanes:
                total += lane
            totals.append(total)
        values = totals
    return values[0]


@pytest.mark.parametrize("count", [15, 4096, 3 * 4096 + 5])
def test_the_order_of_the_additions_is_the_defined_one(count: int) -> None:
    x = np.random.default_rng(count).standard_t(3, count).astype(np.float32)
    shifted = [float(value) - float(x[0]) for value in x]
    _, first, second = sums(x)
    assert (first, second) == (in_order(shifted), in_order([d * d for d in shifted]))


def test_far_from_zero_the_spread_is_kept() -> None:
    """Of 2^24 and its neighbour the sum of squares alone has nothing left of the difference."""
    x = np.array([2.0**24, 2.0**24 + 2] * 500, np.float32)
    assert moments(x, reference).sigma == 1.0
