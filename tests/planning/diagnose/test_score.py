"""The density of measured steps: a mixture of two normal ones in logarithms, with errors that two cases share."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from paceline.planning.compare.speedup_range import SHARED
from paceline.planning.diagnose.effects import Guess
from paceline.planning.diagnose.score import NOISE, SLOWER, SLOWER_BY, SLOWER_SPREAD, consistent, density


def bivariate(x: float, y: float, a: float, b: float, r: float) -> float:
    """Return the bivariate normal density with standard deviations and a correlation."""
    form = ((x / a) ** 2 - 2 * r * x * y / (a * b) + (y / b) ** 2) / (1 - r * r)
    return math.exp(-form / 2) / (2 * math.pi * a * b * math.sqrt(1 - r * r))


def test_one_step_is_ordinary_or_slower() -> None:
    spread = math.hypot(0.2, NOISE)
    ordinary = NormalDist(math.log(0.5), spread).pdf(math.log(0.6))
    slower = NormalDist(math.log(0.5) + SLOWER_BY, math.hypot(spread, SLOWER_SPREAD)).pdf(math.log(0.6))
    expected = (1 - SLOWER) * ordinary + SLOWER * slower
    assert density([0.6], [Guess(0.5, 0.2)]) == pytest.approx(expected)


def test_two_steps_share_their_error() -> None:
    x, y = 0.2, 0.25
    a, b = math.hypot(0.2, NOISE), math.hypot(0.3, NOISE)
    r = SHARED["same"] * 0.2 * 0.3 / (a * b)  # the bivariate normal density
    c, d = math.hypot(a, SLOWER_SPREAD), math.hypot(b, SLOWER_SPREAD)
    shared = (r * a * b + SLOWER_SPREAD**2) / (c * d)
    expected = (1 - SLOWER) * bivariate(x, y, a, b, r)
    expected += SLOWER * bivariate(x - SLOWER_BY, y - SLOWER_BY, c, d, shared)
    guesses = [Guess(1.0, 0.2), Guess(2.0, 0.3)]
    assert density([math.exp(x), 2 * math.exp(y)], guesses) == pytest.approx(expected)
    assert density([1.2, 2.4], guesses) > density([1.2, 2 / 1.2], guesses)


def test_consistent_is_the_range_of_80_percent() -> None:
    guess = Guess(1.0, 0.2)
    end = math.exp(1.2816 * math.hypot(0.2, NOISE))
    assert consistent([0.999 * end], [guess]) and not consistent([1.001 * end], [guess])
