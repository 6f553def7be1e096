"""The best batch is the best of all that are tried, and batches are divided without loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.array_types import Array, Ints
from paceline.scheduling.speeds.goodput import (
    ENVELOPE_FROM,
    SIZES,
    Batches,
    BatchLimits,
    Noise,
    PackedGoodput,
    StepSeconds,
    batch_split,
    best_batches,
)


class Linear(StepSeconds):
    """A step of m samples takes (20 + m) ms, its exchange 3 ms a device beyond the first."""

    def step_s(self, nodes: Ints, devices: Ints, local: Ints) -> tuple[Array, Array]:
        compute = 0.02 + 0.001 * local
        return compute + 0.003 * (devices - 1) * nodes, np.asarray(compute)


@given(st.integers(1, 40), st.integers(1, 20), st.floats(0.01, 1e3), st.integers(1, 6), st.integers(8, 200))
def test_no_batch_is_better_than_the_best(first: int, growth: int, variance: float, devices: int, local_most: int) -> None:
    limits, noise = BatchLimits(first, first * growth, 1, local_most), Noise(1.0, variance)
    counts = np.array([devices])
    best, local, passes = best_batches(Linear(), limits, noise, np.array([1]), counts)
    brute = 0.0
    least = max(first, devices)
    for batch in least * (max(least, limits.most) / least) ** np.linspace(0, 1, SIZES):
        one = batch / devices
        count = int(np.ceil(one / local_most - 1e-8))
        if devices == 1 and one > first + 1e-8:
            count = max(count, 2)
        size = int(np.ceil(one / count - 1e-8))
        if 1 <= size <= local_most:
            step, accumulate = Linear().step_s(np.array(1), counts[0], np.array(size))
            gain = noise.gain(devices * size * count / first)
            brute = max(brute, float(gain / (step + (count - 1) * accumulate)))
    assert best[0] == pytest.approx(brute)
    assert 1 <= local[0] <= local_most and passes[0] >= 0


@given(st.integers(1, 300), st.integers(1, 16), st.integers(4, 64))
def test_a_split_covers_the_batch_and_no_more_than_a_sample_a_pass(batch: int, devices: int, local_most: int) -> None:
    limits = BatchLimits(8, 10**6, 1, local_most)
    local, passes = batch_split(limits, batch, devices)
    total = local * devices * (passes + 1)
    assert batch <= total < batch + 2 * devices * (passes + 1)
    assert local <= local_most
    assert passes >= 1 or devices > 1 or batch <= limits.first


def test_a_fixed_batch_stays() -> None:
    limits = BatchLimits(8, 512, 1, 64, fixed=96)
    _, local, passes = best_batches(Linear(), limits, Noise(1, 10), np.array([1, 1, 1]), np.array([1, 2, 4]))
    assert (local * (passes + 1) * [1, 2, 4]).tolist() == [96, 96, 96]


def test_where_no_batch_is_legal_nothing_is_promised() -> None:
    limits = BatchLimits(8, 16, 4, 2)
    assert best_batches(Linear(), limits, Noise(1, 1), np.array([1]), np.array([8]))[0].tolist() == [0.0]


@pytest.mark.parametrize("fixed", [0, 96])
def test_jobs_of_equal_step_times_share_tables_of_the_same_goodput(fixed: int) -> None:
    """The envelope has the best of all batches at every noise scale, also where every batch is illegal."""
    times, limits, counts = Linear(), BatchLimits(8, 512, 1, 64, fixed), np.arange(1, 10)
    for noise in (Noise(0, 1), *(Noise(2, variance) for variance in np.geomspace(1e-3, 1e6, 40).tolist())):
        best = best_batches(times, limits, noise, -(-counts // 4), counts)[0]
        for most in (3, 9, 1):
            assert times.packed_goodput(limits, 4, most, noise) == pytest.approx(best[:most], rel=1e-12)
    nowhere = PackedGoodput(Batches.of(times, BatchLimits(8, 16, 4, 2), np.array([1]), np.array([8])))
    assert [nowhere.table(Noise(1, 1), 1).tolist() for _ in range(2 * ENVELOPE_FROM)] == [[0.0]] * 2 * ENVELOPE_FROM


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1.0, 1e4))
def test_gain_lies_between_one_and_the_scale(signal: float, variance: float, scale: float) -> None:
    noise = Noise(signal, variance)
    assert noise.gain(1.0) == pytest.approx(1.0)
    assert 1 - 1e-9 <= noise.gain(scale) <= scale * (1 + 1e-9)
    assert noise.gain(1e15) == pytest.approx(1 + variance / signal, rel=1e-3)
