"""Streams: what is pushed is summed and pulled without a further error, in any shards, and has the described size."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from paceline.codecs import counter, ternary
from paceline.strategy import EXCHANGES, FP32, TERNARY, shard_bounds
from paceline.training.streams import Bf16Stream, Fp32Stream, Stream, TernaryStream

F32 = np.ndarray


def exchange(streams: list[Stream], bounds: list[tuple[int, int]]) -> list[F32]:
    """Push, reduce, pull among streams of as many ranks, without a network; checks the size of every message."""
    n = len(streams)
    for start, stop in bounds:
        if start == stop:
            continue
        pushed = [s.encode(start, stop) for s in streams]
        assert {m.size for m in pushed} == {streams[0].format.push_bytes(stop - start)}
        pulled = streams[0].reduce(pushed, stop - start)
        assert pulled.size == streams[0].format.pull_bytes(stop - start, n)
        for s in streams:
            s.decode(pulled, start, stop)
    return [s.out for s in streams]


def ternary_streams(gradients: list[F32], seed: int, step: int, clip: float | None) -> list[Stream]:
    bounds = [ternary.clip_bound(ternary.moments(g), clip) for g in gradients]
    scale = max(bounds)
    return [
        TernaryStream(
            ternary.ternarize(g, b, scale, counter.key(seed, step, rank), 0),
            np.array([scale], np.float32),
            [g.size],
            len(gradients),
        )
        for rank, (g, b) in enumerate(zip(gradients, bounds, strict=True))
    ]


def normal(workers: int, count: int, seed: int) -> list[F32]:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(count) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32) for _ in range(workers)]


@settings(deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 500), st.sampled_from([None, 2.5]), st.integers(0, 2**32), st.sampled_from(EXCHANGES[1:])
)
def test_the_ternary_exchange_is_the_plain_formula(workers, count, clip, seed, way):
    gradients = normal(workers, count, seed)
    means = exchange(ternary_streams(gradients, seed, 5, clip), shard_bounds(count, way, workers))
    expected = oracle.terngrad_mean(gradients, seed, 5, 0, clip)
    for mean in means:
        assert mean.tobytes() == (expected + np.float32(0)).tobytes()


@pytest.mark.parametrize("workers", [64, 127, 128, 130, 300])
def test_sums_of_many_workers_do_not_overflow(workers):
    # Every worker sends +1 (or -1) everywhere: the largest sums there are.
    gradients = [np.array([1, -1, 1, -1, 0] * 3, np.float32)] * workers
    means = exchange(ternary_streams(gradients, 0, 0, None), [(0, 15)])
    assert all(np.array_equal(mean, gradients[0]) for mean in means)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 5), st.integers(2, 200), st.integers(0, 2**32))
def test_the_mean_over_workers_and_steps_is_the_mean_clipped_gradient(workers, count, seed):
    repeats = 150
    gradients = normal(workers, count, seed)
    total = np.zeros(count)
    for step in range(repeats):
        total += exchange(ternary_streams(gradients, seed, step, 2.5), [(0, count)])[0]
    limits = [float(oracle.bound(g, 2.5)) for g in gradients]
    clipped = [np.clip(g.astype(np.float64), -b, b) for g, b in zip(gradients, limits, strict=True)]
    s = max(limits)
    variance = sum(np.abs(g) / s * (1 - np.abs(g) / s) for g in clipped) * s**2 / workers**2 / repeats
    bound = 6 * np.sqrt(variance) + 6 * s / repeats / workers + 1e-5 * s
    assert (np.abs(total / repeats - sum(clipped) / workers) <= bound).all()


@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 2**32), st.sampled_from(EXCHANGES[1:]))
def test_dense_is_the_sum_in_rank_order_whatever_the_shards(workers, count, seed, way):
    gradients = normal(workers, count, seed)
    total = gradients[0].copy()
    for g in gradients[1:]:
        total = total + g
    for mean in exchange([Fp32Stream(g) for g in gradients], shard_bounds(count, way, workers)):
        assert mean.tobytes() == (total / np.float32(workers)).tobytes()


@given(st.integers(1, 6), st.integers(1, 300), st.integers(0, 2**32))
def test_bf16_is_within_its_rounding(workers, count, seed):
    gradients = normal(workers, count, seed)
    means = exchange([Bf16Stream(g) for g in gradients], shard_bounds(count, "sharded", workers))
    exact = np.mean([g.astype(np.float64) for g in gradients], axis=0)
    allowed = np.mean([np.abs(g) for g in gradients], axis=0) / 256 + np.abs(exact) / 128
    assert all(np.array_equal(m, means[0]) for m in means)
    assert (np.abs(means[0] - exact) <= allowed + 1e-12).all()


@given(st.integers(0, 5000), st.integers(1, 40), st.sampled_from(EXCHANGES[1:]))
def test_shards_cover_every_element_once_on_whole_blocks(count, workers, way):
    bounds = shard_bounds(count, way, workers)
    assert len(bounds) == workers and bounds[0][0] == 0 and bounds[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    assert all(start % 64 == 0 or start == count for start, _ in bounds)
    if way == "sharded":
        sizes = [stop - start for start, stop in bounds]
        assert max(sizes) == sizes[0] < count / workers + 64
    # Whole blocks in every shard but the last: cutting costs no byte.
    for fmt in (TERNARY, FP32):
        assert sum(fmt.push_bytes(stop - start) for start, stop in bounds) == fmt.push_bytes(count)
