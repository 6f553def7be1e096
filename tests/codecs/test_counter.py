"""The draws: the same for the same (seed, step, rank, element), and otherwise as good as independent and uniform."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from paceline.codecs import counter

N = 1 << 18
WORDS = st.integers(0, 2**64 - 1)
# Starts where the index changes its upper half, and far beyond.
STARTS = [0, 1, 2**20 + 3, 2**32 - N // 2, 2**32, 2**32 + 2**31, 5 * 2**32 - 17, 2**45 + 9]


def unit(seed: int = 0, step: int = 0, rank: int = 0, start: int = 0, count: int = N) -> np.ndarray:
    return counter.uniform24(counter.key(seed, step, rank), start, count) / 2.0**24


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """In standard deviations: the sum of products of N independent uniforms about their mean has variance N / 144."""
    return float(abs(np.dot(a - 0.5, b - 0.5)) / np.sqrt(a.size / 144))


@given(WORDS, st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 2**40), st.integers(0, 70))
def test_draws_are_those_of_the_description(seed, step, rank, start, count):
    drawn = counter.uniform24(counter.key(seed, step, rank), start, count)
    assert drawn.tolist() == [oracle.draw(seed, step, rank, start + k) for k in range(count)]


@given(WORDS, st.integers(0, 2**34), st.lists(st.integers(0, 40_000), min_size=1, max_size=4))
def test_draws_do_not_depend_on_how_elements_are_cut(seed, start, cuts):
    key = counter.key(seed, 3, 1)
    edges = [0, *sorted(cuts)]
    parts = [counter.uniform24(key, start + a, b - a) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), counter.uniform24(key, start, edges[-1]))


@pytest.mark.everyday(*(f"{2**63 + 11}-{start}" for start in STARTS))
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("seed", [0, 1, 2**63 + 11])
def test_draws_are_uniform(seed, start):
    from scipy import stats  # which takes seconds to import

    u = unit(seed, 17, 2, start)
    for bins in (2, 256, 1000):  # the top bits and no power of two
        counts = np.histogram(u, bins, (0, 1))[0]
        assert stats.chisquare(counts).pvalue > 1e-6
    low = (u * 2**24).astype(np.int64) % 256  # the lowest bits
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-6
    assert stats.kstest(u, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("start", STARTS)
def test_neighbouring_elements_are_independent(start):
    from scipy import stats

    u = unit(9, 4, 0, start, N + 4096)
    for lag in (1, 2, 3, 8, 64, 256, 4096):
        assert correlation(u[:N], u[lag : lag + N]) < 5.5, lag
    pairs = np.histogram2d(u[0::2], u[1::2], 16, [(0, 1), (0, 1)])[0].ravel()
    assert stats.chisquare(pairs).pvalue > 1e-6


@pytest.mark.parametrize(("what", "values"), [("seed", range(12)), ("step", range(12)), ("rank", range(12))])
def test_streams_of_near_keys_are_independent(what, values):
    streams = [unit(**{what: value}) for value in values]
    for (i, a), (j, b) in itertools.combinations(enumerate(streams), 2):
        assert correlation(a, b) < 5.5, (what, i, j)
        assert (a == b).mean() < 1e-4


def test_no_stream_is_another_one_shifted():
    # Steps or ranks that share a sequence at another offset would repeat each other's noise.
    streams = [unit(step=step, rank=rank) for step in range(3) for rank in range(3)]
    for a, b in itertools.combinations(streams, 2):
        for shift in (1, 2, 1000):
            assert correlation(a[shift:], b[:-shift]) < 5.5
    for a, b in itertools.permutations(streams, 2):
        assert np.isin(a[:1000], b).sum() < 60  # of 2**24 values, 2**18 are there: 16 of 1000 by chance


def test_indices_beyond_32_bits_have_draws_of_their_own():
    near, far, farther = unit(), unit(start=2**32), unit(start=2**33)
    for a, b in itertools.combinations((near, far, farther), 2):
        assert correlation(a, b) < 5.5 and (a == b).mean() < 1e-4


def test_seed_step_and_rank_are_not_interchangeable():
    keys = {counter.key(*parts) for parts in itertools.product(range(12), repeat=3)}
    assert len(keys) == 12**3
    assert counter.key(-1, 0) == counter.key(2**64 - 1, 0)


def test_steps_and_ranks_differ_in_both_words_of_the_key():
    keys = [counter.key(0, step, rank) for step in range(20_000) for rank in range(2)]
    assert len(set(keys)) == len(keys)
    for word in zip(*keys, strict=True):
        assert len(set(word)) > 39_900  # of 40,000 draws from 2**32, 0.2 collide by chance
