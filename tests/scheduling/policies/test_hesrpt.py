"""heSRPT: the shares of the theorem, and that they are the best for two jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling.policies.hesrpt import exponent, hesrpt, shares
from scheduling_toys import Fleet, elastic, state


@given(st.integers(1, 50), st.floats(0.0, 0.99))
def test_shares_are_all_of_the_cluster_and_the_smallest_job_has_the_most(jobs: int, p: float) -> None:
    theta = shares(jobs, p)
    assert theta.sum() == pytest.approx(1.0) and (np.diff(theta) >= -1e-9).all()
    assert theta[0] == pytest.approx((1 / jobs) ** (1 / (1 - p)))


def test_without_speedup_to_lose_all_share_alike() -> None:
    assert shares(4, 0.0) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("p", [0.3, 0.5, 0.8])
def test_no_other_constant_share_of_two_jobs_ends_them_sooner_in_the_mean(p: float) -> None:
    """Two jobs of sizes 1 and x: the first leaves, the second takes all."""

    def total(theta: float, large: float) -> float:
        first = 1 / theta**p
        return 2 * first + (large - (1 - theta) ** p * first)

    grid = np.linspace(0.5, 0.999, 2000)
    best = grid[np.argmin([total(theta, 3.0) for theta in grid])]
    assert shares(2, p)[1] == pytest.approx(best, abs=1e-3)


def test_the_exponent_is_read_from_the_speedups() -> None:
    moment = state([elastic("a", 10), elastic("b", 30)])
    tables = [outlook.seconds_left(0, 8) for outlook in moment.outlooks]
    assert exponent(tables) == pytest.approx(0.8) and exponent([np.array([np.inf, 3.0])]) == 0


def test_whole_sizes_are_near_the_shares() -> None:
    fleet = Fleet.named("16x4xT4")
    jobs = [elastic("large", 1000), elastic("small", 10), elastic("middle", 100)]
    theta = shares(3, 0.8) * 64
    assert hesrpt(state(jobs, fleet)).devices[[0, 2, 1]] == pytest.approx(theta, abs=1.01)
