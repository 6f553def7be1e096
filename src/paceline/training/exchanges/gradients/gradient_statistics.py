"""Statistics of gradients on any device: whether they are finite, their largest magnitude, their moments."""

from __future__ import annotations

import numpy as np
import torch

from paceline.codecs import moments_of, peak_of
from paceline.codecs.moments import Moments

LARGEST = 2.0**100
"""Largest magnitude of a gradient for a codec. Larger ones go dense, since their sums and residuals might overflow."""


def is_finite(values: torch.Tensor) -> bool:
    """Return whether every element is finite. The sum alone decides unless it overflows."""
    return bool(torch.isfinite(values.sum()) or torch.isfinite(values).all())


def peak(values: torch.Tensor) -> float:
    """Return the largest magnitude; NaN if any element is NaN, 0 without elements."""
    if not values.numel():
        return 0.0
    if values.device.type == "cpu" and values.dtype == torch.float32 and values.is_contiguous():
        return peak_of(values.view(-1))
    low, high = torch.aminmax(values)
    return float(torch.maximum(-low, high))


def moments(values: torch.Tensor) -> Moments:
    """Return standard deviation and largest magnitude of 1-D fp32 values."""
    if values.device.type == "cpu":
        return moments_of(values)
    sigma = values.double().std(correction=0)
    return Moments(np.float32(float(sigma)), np.float32(float(values.abs().max())))
