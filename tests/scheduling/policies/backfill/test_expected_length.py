"""Expected lengths: predictions, limits and stated durations, in the order that a policy asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.scheduling.policies.backfill.expected_length import OVERDUE_S, Lengths, expected_seconds
from paceline.scheduling.simulate.run import DurationRun
from scheduling_toys import rigid, state


@pytest.mark.parametrize(
    ("known", "first", "limit_s", "ran_s", "expected"),
    [
        (True, "predicted", 500.0, 0.0, 130.0),
        (True, "stated", 500.0, 0.0, 530.0),
        (True, "stated", 0.0, 0.0, 130.0),
        (False, "predicted", 500.0, 0.0, 530.0),
        (False, "predicted", 0.0, 0.0, 130.0),
        (False, "predicted", 500.0, 200.0, 300.0),
        (False, "predicted", 100.0, 200.0, OVERDUE_S),
    ],
)
def test_the_first_that_is_known_counts(known: bool, first: Lengths, limit_s: float, ran_s: float, expected: float) -> None:
    """A waiting job also needs its start of 30 s; one that is overdue is expected to end soon."""
    job = rigid("a", 100, 2, limit_s=limit_s)
    held = np.array([2 if ran_s else 0])
    given = state([job], outlooks=[DurationRun(job, known)], devices=held, run_s=np.array([[ran_s]]))
    assert expected_seconds(given, 0, 0, first) == expected


def test_an_unknown_length_is_infinite_and_a_type_on_which_it_cannot_run_has_none() -> None:
    job = rigid("a", 0, 2, target="end")
    run = DurationRun(job)
    assert expected_seconds(state([job], outlooks=[run]), 0, 0) == math.inf
    run.goodput = lambda group, most: np.zeros(most + 1)  # type: ignore[method-assign]
    assert expected_seconds(state([job], outlooks=[run]), 0, 0) is None
