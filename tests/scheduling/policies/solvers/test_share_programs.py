"""``scheduling.policies.share_lp``: the optimum, and the middle of all optima."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.policies.solvers.share_programs import Hessian, ShareLimits, centred, highest_level, most_value


def limits(devices: list[int], capacity: list[int]) -> ShareLimits:
    return ShareLimits(np.array(devices), np.array(capacity), np.ones((len(devices), len(capacity)), bool))


def test_the_level_is_that_of_the_worst_off() -> None:
    """Two jobs on one device: half the time each; the second needs twice the time for the same level."""
    level, shares = highest_level(limits([1, 1], [1]), np.array([[2.0], [1.0]]))
    assert level == pytest.approx(2 / 3)
    assert shares.ravel() == pytest.approx([1 / 3, 2 / 3])


def test_comparative_advantage_decides_who_gets_what() -> None:
    """One device of each type: each job goes where it is better beside the other."""
    level, shares = highest_level(limits([1, 1], [1, 1]), np.array([[4.0, 1.0], [4.0, 3.0]]))
    assert shares == pytest.approx(np.array([[6 / 7, 1 / 7], [1 / 7, 6 / 7]]), abs=0.15)
    assert (np.array([[4.0, 1.0], [4.0, 3.0]]) * shares).sum(axis=1).min() == pytest.approx(level)


def test_in_the_middle_equal_types_get_equal_shares() -> None:
    """On an empty cluster a corner gives all of one type; an interior point a third of each, as Gavel's solver does."""
    rates, where = np.ones((2, 3)), limits([1, 1], [36, 36, 36])
    level, corner = highest_level(where, rates)
    assert centred(where, corner, rates, np.full(2, level)) == pytest.approx(np.full((2, 3), 1 / 3), abs=5e-3)


@pytest.mark.parametrize("jobs", [1, 7, 60])
def test_the_middle_keeps_all_limits_and_the_optimum(jobs: int) -> None:
    draw = np.random.default_rng(jobs)
    where = limits(draw.choice([1, 2, 4], jobs).tolist(), [8, 4, 6])
    where.legal[draw.random((jobs, 3)) < 0.3] = False
    where.legal[:, 1] = True
    rates = draw.uniform(0.1, 5, (jobs, 3))
    level, corner = highest_level(where, rates)
    shares = centred(where, corner, rates, np.full(jobs, level))
    assert shares.min() >= 0 and shares.sum(axis=1).max() <= 1
    assert (where.devices @ shares <= where.capacity + 1e-9).all()
    assert shares[~where.legal].sum() == 0
    assert (rates * shares).sum(axis=1).min() >= level * (1 - 1.1e-3)


def test_the_largest_value_meets_the_needs() -> None:
    where, values = limits([1, 1], [1]), np.array([[3.0], [1.0]])
    assert np.asarray(most_value(where, values)).ravel() == pytest.approx([1, 0])
    needs = np.array([[1.0, 0.0], [1.0, 0.25]])
    corner = np.asarray(most_value(where, values, needs))
    assert corner.ravel() == pytest.approx([0.75, 0.25])
    middle = centred(where, corner, np.ones((2, 1)), needs[:, 1], values)
    assert middle.ravel() == pytest.approx([0.75, 0.25], abs=0.02)
    assert most_value(where, values, np.array([[1.0, 0.6], [1.0, 0.6]])) is None


def test_a_newton_step_solves_the_whole_system() -> None:
    """The inverse by blocks and outer products is that of the whole matrix, with a job that may not use a type."""
    rng = np.random.default_rng(5)
    jobs, types = 6, 3
    legal = np.ones((types, jobs), bool)
    legal[1, 2] = False
    inverse, needs, uses, gain = (np.where(legal, rng.uniform(0.1, 2, (types, jobs)), 0.0) for _ in range(4))
    sums, gradient = rng.uniform(0.1, 2, jobs), np.where(legal, rng.normal(size=(types, jobs)), 0.0)
    places = [(kind, job) for kind in range(types) for job in range(jobs) if legal[kind, job]]
    whole = np.diag([1 / inverse[place] for place in places])
    for row, (kind, job) in enumerate(places):
        for column, (other, peer) in enumerate(places):
            whole[row, column] += gain[kind, job] * gain[other, peer] + (kind == other) * uses[kind, job] * uses[kind, peer]
            whole[row, column] += (job == peer) * (sums[job] ** 2 + needs[kind, job] * needs[other, job])
    found = Hessian(inverse, sums, needs, uses, gain).solve(gradient)
    assert found[tuple(zip(*places, strict=True))] == pytest.approx(
        np.linalg.solve(whole, [gradient[place] for place in places])
    )
    assert found[1, 2] == 0
