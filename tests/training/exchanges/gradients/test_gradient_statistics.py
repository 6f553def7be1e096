"""Statistics that decide whether a codec may encode a gradient."""

from __future__ import annotations

import numpy as np
import torch

from paceline.training.exchanges.gradients.gradient_statistics import is_finite, moments, peak


def test_peak() -> None:
    assert peak(torch.tensor([1.0, -3.0, 2.0])) == 3.0
    assert peak(torch.empty(0)) == 0.0
    assert np.isnan(peak(torch.tensor([1.0, float("nan")])))
    assert peak(torch.ones(4, 6)[:, 1:3]) == 1.0  # columns of a matrix


def test_finite_where_the_sum_overflows() -> None:
    assert is_finite(torch.full((4,), 3e38))
    assert not is_finite(torch.tensor([1.0, float("inf"), -float("inf")]))


def test_moments_are_numpys() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    found = moments(values)
    np.testing.assert_allclose(found.sigma, values.double().numpy().std(), rtol=1e-6)
    assert found.peak == np.float32(values.abs().max())
