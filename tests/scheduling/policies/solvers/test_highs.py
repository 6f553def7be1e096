"""Integers of the least cost, by trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.sparse import csr_array

from paceline.scheduling.policies.solvers.highs import integers


def test_it_is_the_least_of_all_integers() -> None:
    cost, table, most, highest = (
        np.array([-3.0, -2.0, -4.0]),
        np.array([[2, 1, 3], [1, 1, 1]]),
        np.array([7, 4]),
        np.array([2, 3, 2]),
    )
    legal = (np.array(x) for x in itertools.product(range(3), range(4), range(3)))
    least = min(float(cost @ x) for x in legal if (table @ x <= most).all())
    for rest in (0.0, -5.0):
        found = integers(cost, csr_array(table), np.full(2, -np.inf), most, highest, 10.0, rest)
        assert found is not None
        assert float(cost @ found) == pytest.approx(least)
        assert (found <= highest).all()


def test_none_is_returned_if_there_are_none() -> None:
    assert integers(np.ones(1), csr_array(np.ones((1, 1))), np.array([3.0]), np.array([5.0]), 2, 10.0) is None
