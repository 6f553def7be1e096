"""A Gaussian process over steps: itself where it was observed, the prior far away, and never surer than its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observed_steps import setting
from paceline.prediction.correction.gaussian_process import (
    TASK,
    Array,
    CovarianceKernel,
    Position,
    Process,
    amplitude,
    coordinates,
    fitted,
)

KERNEL = CovarianceKernel(every=0.1, task=0.2, near=0.3, noise=0.05)
NARROW = 10


def places(seed: int, count: int, width: float = 1.0) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(-width, width, (count, NARROW)), dtype=np.float64)


@given(st.integers(0, 99), st.integers(1, 12))
def test_a_kernel_is_symmetric_and_positive(seed: int, count: int) -> None:
    points = places(seed, count)
    covariance = KERNEL.of(points, points)
    assert covariance == pytest.approx(covariance.T)
    assert np.diag(covariance) == pytest.approx(np.full(count, KERNEL.prior**2))
    assert (covariance <= KERNEL.prior**2 * (1 + 1e-12)).all() and (covariance >= KERNEL.every**2).all()
    assert np.linalg.eigvalsh(KERNEL.measured(points)).min() >= KERNEL.noise**2 * (1 - 1e-6)


def test_another_task_shares_less_than_another_place() -> None:
    """What differs in how it is run still has the task in common."""
    here, elsewhere, other = np.zeros((3, 1, NARROW))
    elsewhere[0, TASK:], other[0, :TASK] = 100.0, 100.0
    assert KERNEL.of(here, elsewhere)[0, 0] == pytest.approx(KERNEL.every**2 + KERNEL.task**2)
    assert KERNEL.of(here, other)[0, 0] == pytest.approx(KERNEL.every**2)


@settings(max_examples=30)
@given(st.integers(0, 99), st.integers(1, 8))
def test_without_noise_it_goes_through_what_was_observed(seed: int, count: int) -> None:
    points, ratios = places(seed, count, 3.0), np.random.default_rng(seed).normal(0, 0.2, count)
    process = Process.of(CovarianceKernel(0.1, 0.2, 0.3, 1e-6), points, ratios)
    for point, ratio in zip(points, ratios, strict=True):
        mean, sigma = process.at(point)
        assert mean == pytest.approx(ratio, abs=1e-4) and sigma == pytest.approx(0.0, abs=1e-3)


@given(st.floats(-2, 2), st.integers(1, 50))
def test_repetitions_are_averaged_by_hand(ratio: float, count: int) -> None:
    """At one place: the mean shrinks by prior^2 / (prior^2 + noise^2 / n), Rasmussen and Williams, equation 2.25."""
    process = Process.of(KERNEL, np.zeros((count, NARROW)), np.full(count, ratio))
    mean, sigma = process.at(np.zeros(NARROW))
    variance, noise = process.kernel.prior**2, process.kernel.noise
    assert mean == pytest.approx(ratio * variance / (variance + noise**2 / count))
    assert sigma >= noise >= KERNEL.noise


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_many_measurements_say_how_noisy_they_are(noise: float) -> None:
    """A noisy cluster is averaged: the ratio at a place is that of its neighbours, not of one measurement."""
    random = np.random.default_rng(5)
    points = np.repeat(places(5, 12, 3.0), 12, axis=0)
    kernel = fitted(KERNEL, points, random.normal(0.1, noise, len(points)))
    assert kernel.noise == pytest.approx(noise, rel=0.3)


def test_few_measurements_do_not() -> None:
    ratios = np.array([0.5, -0.5, 0.4])
    assert fitted(KERNEL, places(5, 3, 3.0), ratios).noise < 2 * KERNEL.noise


def test_nothing_observed_is_the_prior() -> None:
    empty = Process.of(KERNEL, np.zeros((0, NARROW)), np.zeros(0))
    assert empty.at(np.zeros(NARROW)) == (0.0, pytest.approx(math.hypot(KERNEL.prior, KERNEL.noise)))
    assert amplitude(KERNEL, np.zeros((0, NARROW)), np.zeros(0)) == 1.0


def test_the_width_grows_with_how_much_neighbours_differ() -> None:
    points = places(1, 12, 2.0)
    noisy = np.random.default_rng(2).normal(0, 1, 12)
    assert amplitude(KERNEL, points, 0.01 * noisy) < amplitude(KERNEL, points, noisy)
    calm, rough = (Process.of(KERNEL, points, scale * noisy).at(np.full(NARROW, 0.5)) for scale in (0.01, 1.0))
    assert calm[1] < rough[1]


def test_a_position_says_where_a_step_lies() -> None:
    here = Position.of(*setting(nodes=2))  # type: ignore[arg-type]
    alone = Position.of(*setting())  # type: ignore[arg-type]
    assert (here.devices, alone.devices) == (16, 8)
    assert here.names[:2] == alone.names[:2] == ("resnet-50", alone.names[1]) and alone.names[2] == ""
    table = coordinates([here, alone], here.names)
    assert table.shape == (2, NARROW) and (table[:, TASK - 2 : TASK] == 0).all(), "the same network on the same device"
    assert table[1, 8] == 0, "the network of a single node is no other network"
    other = coordinates([Position.of(*setting(device="T4"))], here.names)  # type: ignore[arg-type]
    assert other[0, 3] > 0 and other[0, 2] == 0
