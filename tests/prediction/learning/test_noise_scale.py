"""The noise scale against made-up gradients whose true one and variance are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.prediction.learning.noise_scale import LEAST_STEPS, BatchEfficiency, NoiseScale, critical_batch


def norms(rng: np.random.Generator, truth: np.ndarray, sigma: float, workers: int, local_batch: int) -> tuple[float, float]:
    gradients = truth + rng.normal(size=(workers, truth.size)) * sigma / np.sqrt(local_batch)
    return float((gradients**2).sum(1).mean()), float((gradients.mean(0) ** 2).sum())


@pytest.mark.everyday("2-4")
@pytest.mark.parametrize(("workers", "local_batch"), [(2, 4), (8, 32), (5, 1)])
def test_the_scale_of_known_noise_is_found(workers: int, local_batch: int) -> None:
    """tr(Sigma) / |G|^2 = 1000 x 0.5^2 / 2^2 = 62.5 samples, whatever the workers and their batch."""
    rng = np.random.default_rng(workers)
    truth = np.zeros(1000)
    truth[:4] = 1.0
    scale = NoiseScale(workers, decay=0.999)
    for _ in range(4000):
        scale.add(*norms(rng, truth, 0.5, workers, local_batch))
    assert scale.batch(local_batch) == pytest.approx(62.5, rel=0.05)
    assert scale.take(local_batch) == pytest.approx(62.5, rel=0.05)
    assert scale.take(local_batch) is None


def test_the_pair_is_unbiased_where_the_norms_are_not() -> None:
    """A norm of noise alone is no signal: the mean of the steps' |G|^2 is zero, their ratio says nothing."""
    rng, scale = np.random.default_rng(0), NoiseScale(4)
    for _ in range(3000):
        scale.add(*norms(rng, np.zeros(50), 1.0, 4, 8))
    assert abs(scale._signal_sum / scale.steps) < 0.05 * scale._noise_sum / scale.steps
    scale = NoiseScale(2)
    for step in range(LEAST_STEPS):
        assert scale.batch(8) is None, step
        scale.add(2.0, 1.5)
    assert scale.batch(8) == pytest.approx(8.0)


def test_epochs_of_few_steps_are_taken_together() -> None:
    """At a large batch an epoch has fewer steps than say anything: they wait for those of the next."""
    scale, found = NoiseScale(2), []
    for step in range(1, 66):
        scale.add(2.0 if step <= 28 else 2.1, 1.5)  # |G|^2 and noise of 1 and 1, then of 0.9 and 1.2
        if step % 7 == 0:
            found.append(scale.take(8))
    assert [one is None for one in found] == [True, True, False] * 3
    assert found[2::3] == pytest.approx([8.0, 8 * (7 + 14 * 1.2) / (7 + 14 * 0.9), 8 * 1.2 / 0.9])


def test_one_worker_shows_no_noise() -> None:
    with pytest.raises(ValueError, match="1 workers"):
        NoiseScale(1)


def test_a_batch_of_the_critical_size_takes_twice_the_least_of_both() -> None:
    same, small, endless = BatchEfficiency(64, 64), BatchEfficiency(64, 448), BatchEfficiency(64, math.inf)
    assert (same.steps_factor, same.samples_factor, same.wasted_share) == (2, 2, 0.5)
    assert (small.steps_factor, small.samples_factor, small.wasted_share) == (8, 1 + 1 / 7, 1 / 8)
    assert (endless.samples_factor, endless.wasted_share) == (1, 0)
    with pytest.raises(ValueError, match="more than 0 samples"):
        BatchEfficiency(64, 0)


def test_the_critical_batch_of_a_run_is_that_of_its_parts_together() -> None:
    """Least steps and samples of three stretches, summed, against the one number."""
    scales, batch, steps = (10.0, 100.0, 1000.0), 50.0, 30.0
    least = [steps / 3 / (1 + scale / batch) for scale in scales]
    found = BatchEfficiency(batch, critical_batch(scales, batch) or 0)
    assert found.steps_factor == pytest.approx(steps / sum(least))
    assert found.samples_factor == pytest.approx(steps * batch / sum(s * scale for s, scale in zip(least, scales, strict=True)))
    assert critical_batch([], batch) is None
