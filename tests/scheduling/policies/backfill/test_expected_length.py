"""Expected lengths: predictions, limits and stated durations, in the order that a policy asks for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.scheduling.policies.backfill.expected_length import OVERDUE_S, Lengths, expected_ends, expected_seconds
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.state import FixedSpeeds
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


@pytest.mark.parametrize("first", ["predicted", "stated"])
def test_ends_of_all_running_jobs_are_those_of_each(first: Lengths) -> None:
    rng = np.random.default_rng(1)
    draws = rng.choice([0.0, 1.0], (40, 4))
    jobs = [rigid(str(at), 100 + 90 * row[0], 2, limit_s=300.0 * row[1]) for at, row in enumerate(draws)]
    ran_s = 150.0 * rng.integers(0, 3, (40, 1))
    speeds = FixedSpeeds(np.where(draws[:, 2:3], 1.0, 0.0), np.where(draws[:, 3], 80.0, np.nan), np.zeros(40))
    given = state(jobs, devices=np.where(ran_s[:, 0] > 0, 2, 0), run_s=ran_s, fixed=speeds)
    expected = [
        given.time_s + (math.inf if not held or (left := expected_seconds(given, at, 0, first)) is None else left)
        for at, held in enumerate(given.devices.tolist())
    ]
    assert expected_ends(given, first).tolist() == expected
