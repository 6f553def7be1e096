"""Probability of measured steps under a cause: how well its predicted steps agree with all of them at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.array_types import Array
from paceline.calibration.uncertainty import Z80
from paceline.planning.compare.speedup_range import SHARED
from paceline.planning.diagnose.effects import Guess

NOISE = 0.05
"""Assumed standard deviation of the logarithm of a measured step: the clock, the number of steps, rounding."""
SLOWER = 0.2
"""Assumed share of runs that differ from their prediction by one more factor in all their measurements: old software, a slow
script, a question that leaves out parts of its run."""
SLOWER_BY, SLOWER_SPREAD = 0.4, 0.5
"""Assumed mean and standard deviation of the logarithm of their factor: 80 % between 0.8 and 2.8. Chosen in sight of the cases
of ``benchmarks/diagnose_cases.csv`` that are not sealed."""
_TINY = 1e-300


def density(measured: Sequence[float], guesses: Sequence[Guess]) -> float:
    """Return the density of the logarithms of measured steps: a mixture of two normal ones.

    The errors of the predictions of two cases are correlated (``speedup_range.SHARED``, on one device), so their ratio is known
    better than either step, and a second measurement tells causes apart. A share of runs (``SLOWER``) is slower by one more
    factor, which all its measurements have in common.
    """
    miss = np.array([math.log(m / g.seconds) for m, g in zip(measured, guesses, strict=True)])
    spread = np.array([g.spread for g in guesses])
    shared = SHARED["same"] * np.outer(spread, spread)
    covariance = shared + np.diag((1 - SHARED["same"]) * spread**2 + NOISE**2)
    ordinary = _normal(miss, covariance)
    slower = _normal(miss - SLOWER_BY, covariance + SLOWER_SPREAD**2)
    return max(_TINY, (1 - SLOWER) * ordinary + SLOWER * slower)


def _normal(miss: Array, covariance: Array) -> float:
    exponent = -0.5 * float(miss @ np.linalg.solve(covariance, miss))
    return math.exp(exponent) / math.sqrt((2 * math.pi) ** len(miss) * float(np.linalg.det(covariance)))


def distance(measured: Sequence[float], guesses: Sequence[Guess]) -> float:
    """Return the distance between measured and predicted steps, in standard deviations."""
    misses = (math.log(m / g.seconds) / math.hypot(g.spread, NOISE) for m, g in zip(measured, guesses, strict=True))
    return math.hypot(*misses)


def consistent(measured: Sequence[float], guesses: Sequence[Guess]) -> bool:
    """Return whether each measured step lies in the 80 % range of its predicted one."""
    return all(
        abs(math.log(m / g.seconds)) <= Z80 * math.hypot(g.spread, NOISE) for m, g in zip(measured, guesses, strict=True)
    )
