"""Length of a job as a distribution, from a predicted time with its 80 % range."""

from __future__ import annotations

import math

import numpy as np

from paceline.scheduling.starts.lengths import LengthDistribution

VALUES = 64
_NORMAL_90 = 1.2815515655446004
"""90 % quantile of the standard normal distribution."""


def from_range(low_s: float, median_s: float, high_s: float) -> LengthDistribution:
    """Return the distribution with a 10 % quantile, median and 90 % quantile, lognormal on each side of the median."""
    from scipy.special import ndtri

    normal = np.asarray(ndtri((np.arange(VALUES) + 0.5) / VALUES))
    below = math.log(median_s / min(low_s, median_s)) / _NORMAL_90
    above = math.log(max(high_s, median_s) / median_s) / _NORMAL_90
    values = median_s * np.exp(np.where(normal < 0, below, above) * normal)
    return LengthDistribution(values, np.full(VALUES, 1 / VALUES), "its command line")
