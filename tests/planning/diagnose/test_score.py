"""The density of measured steps: normal in logarithms, with errors that two cases share."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from paceline.planning.compare.speedup_range import SHARED
from paceline.planning.diagnose.effects import Guess
from paceline.planning.diagnose.score import NOISE, consistent, density


def test_one_step_is_normal() -> None:
    expected = NormalDist(math.log(0.5), math.hypot(0.2, NOISE)).pdf(math.log(0.6))
    assert density([0.6], [Guess(0.5, 0.2)]) == pytest.approx(expected)


def test_two_steps_share_their_error() -> None:
    x, y = 0.2, 0.25
    a, b = math.hypot(0.2, NOISE), math.hypot(0.3, NOISE)
    r = SHARED["same"] * 0.2 * 0.3 / (a * b)  # the bivariate normal density
    form = ((x / a) ** 2 - 2 * r * x * y / (a * b) + (y / b) ** 2) / (1 - r * r)
    expected = math.exp(-form / 2) / (2 * math.pi * a * b * math.sqrt(1 - r * r))
    guesses = [Guess(1.0, 0.2), Guess(2.0, 0.3)]
    assert density([math.exp(x), 2 * math.exp(y)], guesses) == pytest.approx(expected)
    assert density([1.2, 2.4], guesses) > density([1.2, 2 / 1.2], guesses)


def test_consistent_is_the_range_of_80_percent() -> None:
    guess = Guess(1.0, 0.2)
    end = math.exp(1.2816 * math.hypot(0.2, NOISE))
    assert consistent([0.999 * end], [guess]) and not consistent([1.001 * end], [guess])
