"""Counts of equal jobs: the least total of the whole program, which has a variable for each choice of each job."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from paceline.scheduling.policies.solvers.equal_jobs import PricedChoices, least_near
from paceline.scheduling.policies.solvers.useful_choices import Choices

JOBS, KINDS = 60, 4


def jobs_of_few_kinds(seed: int) -> Choices:
    """Jobs of four kinds in turn, on 1 or 3 devices of two types."""
    rng = np.random.default_rng(seed)
    cost = -rng.uniform(0.5, 2.0, (KINDS, 4)) * [1, 2, 1, 2]
    job = np.repeat(np.arange(JOBS), 4)
    return Choices(job, np.tile([1, 3], 2 * JOBS), np.tile([0, 0, 1, 1], JOBS), cost[np.arange(JOBS) % KINDS].ravel(), job < 0)


def whole_program(choices: Choices, capacity: np.ndarray) -> float:
    table = np.concatenate(
        [choices.job == np.arange(JOBS)[:, None], (choices.type_index == np.arange(2)[:, None]) * choices.devices]
    )
    limits = LinearConstraint(table, -np.inf, [*np.ones(JOBS), *capacity])
    return float(milp(choices.cost, integrality=np.ones(len(choices.cost)), bounds=Bounds(0, 1), constraints=limits).fun)


@pytest.mark.parametrize("capacity", [(30, 20), (7, 90), (0, 11), (500, 500)])
def test_counts_reach_the_least_total_of_the_whole_program(capacity: tuple[int, int]) -> None:
    choices, there = jobs_of_few_kinds(capacity[0]), np.array(capacity)
    taken = least_near(PricedChoices.at(choices, np.array([0.4, 0.4]), there), np.inf, 10.0)
    assert taken is not None
    assert np.bincount(choices.job[taken]).max() == 1
    assert (np.bincount(choices.type_index[taken], choices.devices[taken], 2) <= there).all()
    assert choices.cost[taken].sum() == pytest.approx(whole_program(choices, there), rel=2e-4)


def test_jobs_with_one_near_choice_take_it_and_nothing_is_returned_if_they_do_not_fit() -> None:
    choices = jobs_of_few_kinds(0)
    for capacity, fits in ((500, True), (10, False)):
        priced = PricedChoices.at(choices, np.full(2, 0.01), np.array([capacity, capacity]))
        taken = least_near(priced, 1e-9, 10.0)
        assert (taken is not None) == fits
        if taken is not None:
            assert (priced.beyond[taken] == 0).all()
            assert len(taken) == JOBS
