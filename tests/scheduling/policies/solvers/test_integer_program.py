"""Integer program: the least sum over one choice per job."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from paceline.scheduling.policies.solvers import equal_jobs
from paceline.scheduling.policies.solvers import integer_program as module
from paceline.scheduling.policies.solvers.highs import GAP, integers
from paceline.scheduling.policies.solvers.integer_program import least_sum
from paceline.scheduling.policies.solvers.useful_choices import Choices


def random_choices(jobs: int, seed: int) -> Choices:
    rng = np.random.default_rng(seed)
    job = np.repeat(np.arange(jobs), 4)
    devices, types = np.tile([1, 2, 1, 4], jobs), np.tile([0, 0, 1, 1], jobs)
    return Choices(job, devices, types, rng.uniform(-1, 0.2, len(job)), np.zeros(len(job), bool))


def all_sums(choices: Choices, capacity: tuple[int, int], jobs: int) -> float:
    best = 0.0
    for picks in itertools.product(range(-1, 4), repeat=jobs):
        rows = [4 * job + pick for job, pick in enumerate(picks) if pick >= 0]
        used = np.bincount(choices.type_index[rows], choices.devices[rows], 2) if rows else np.zeros(2)
        if (used <= capacity).all():
            best = min(best, float(choices.cost[rows].sum()))
    return best


@pytest.mark.parametrize("direct", [0, 2000], ids=["priced first", "as they are"])
@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_least_of_all_combinations(monkeypatch: pytest.MonkeyPatch, seed: int, direct: int) -> None:
    monkeypatch.setattr(module, "DIRECT", direct)
    choices = random_choices(5, seed)
    taken = least_sum(choices, np.array([2, 4]), 10.0)
    assert taken is not None
    assert choices.cost[taken].sum() == pytest.approx(all_sums(choices, (2, 4), 5), rel=GAP)
    assert np.bincount(choices.job[taken]).max() <= 1
    assert (np.bincount(choices.type_index[taken], choices.devices[taken], 2) <= [2, 4]).all()


@pytest.mark.parametrize("capacity", [(40, 50), (40, 5000), (5000, 5000), (1, 0)])
def test_prices_lead_to_the_sum_of_the_whole_program(monkeypatch: pytest.MonkeyPatch, capacity: tuple[int, int]) -> None:
    """Where devices are scarce, of one type only, where there are enough, and where there are hardly any."""
    choices = random_choices(400, 5)
    sums = []
    for direct in (0, 10**6):
        monkeypatch.setattr(module, "DIRECT", direct)
        taken = least_sum(choices, np.array(capacity), 10.0)
        assert taken is not None
        sums.append(choices.cost[taken].sum())
    assert sums[0] == pytest.approx(sums[1], rel=2 * GAP)


def nothing(choices: Choices, *others: object) -> np.ndarray:
    """Rounding that fails."""
    return np.zeros(0, np.int64)


@pytest.mark.parametrize("rounds", [True, False])
def test_few_of_many_choices_go_to_the_solver_if_rounding_fails(monkeypatch: pytest.MonkeyPatch, rounds: bool) -> None:
    solved: list[int] = []

    def counted(cost: np.ndarray, *others: object) -> object:
        solved.append(len(cost))
        return integers(cost, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(equal_jobs, "integers", counted)
    monkeypatch.setattr(module, "DIRECT", 0)
    if not rounds:
        monkeypatch.setattr(module, "rounded", nothing)
    choices = random_choices(600, 6)
    of_four_kinds = replace(choices, cost=np.tile(choices.cost[:16], 150))
    assert least_sum(of_four_kinds, np.array([180, 240]), 30.0) is not None
    assert not solved if rounds else 0 < max(solved) <= 16, "of 2,400"


def test_a_fixed_choice_is_taken_though_it_costs() -> None:
    choices = Choices(np.array([0, 1]), np.array([2, 1]), np.zeros(2, int), np.array([5.0, -1.0]), np.array([True, False]))
    assert np.array_equal(least_sum(choices, np.array([2]), 10.0), [True, False])
    assert np.array_equal(least_sum(choices, np.array([3]), 10.0), [True, True])


def test_nothing_is_shown_while_it_solves(capfd: pytest.CaptureFixture[str]) -> None:
    least_sum(random_choices(20, 3), np.array([7, 9]), 10.0)
    print("after", flush=True)
    assert capfd.readouterr().out == "after\n"


def test_no_time_is_no_allocation_without_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to presolve away: the solver must search. Prices always lead to an allocation."""
    choices, capacity = random_choices(2000, 4), np.array([700, 900])
    taken = least_sum(choices, capacity, 0.0)
    assert taken is not None
    assert (np.bincount(choices.type_index[taken], choices.devices[taken], 2) <= capacity).all()
    monkeypatch.setattr(module, "DIRECT", 10**6)
    assert least_sum(choices, capacity, 0.0) is None
