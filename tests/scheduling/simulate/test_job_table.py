"""Jobs as columns: rounds that are passed at once end where rounds one by one do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.array_types import Array
from paceline.scheduling.simulate.job_table import (
    ATTAINED,
    COLUMNS,
    DELAY,
    HELD,
    SPEED,
    TO_NEXT,
    TYPE,
    advance,
    advance_rounds,
    crossings,
)


def three_jobs() -> Array:
    """Two that run, on two types, and one that waits."""
    columns = np.zeros((len(COLUMNS) + 2, 3))
    columns[[HELD, TYPE, SPEED, TO_NEXT]] = [[3, 1, 0], [0, 1, -1], [0.1, 1.7, 0], [1e6, 1e7, 5]]
    return columns


def test_a_start_is_over_before_work_is_done() -> None:
    columns = three_jobs()
    columns[DELAY, 0] = 7.0
    assert advance(columns, 10.0) and columns[TO_NEXT].tolist() == [1e6 - 0.1 * 3.0, 1e7 - 17.0, 5]
    assert columns[ATTAINED].tolist() == [30, 10, 0] and columns[len(COLUMNS) :].tolist() == [[10, 0, 0], [0, 10, 0]]
    columns[SPEED] = 0.0
    assert not advance(columns, 10.0)


@pytest.mark.parametrize("cells", [1 << 18, 40])
def test_rounds_at_once_are_rounds_one_by_one_to_the_last_digit(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.scheduling.simulate.job_table._CELLS", cells)
    at_once, by_turns = three_jobs(), three_jobs()
    moments = np.arange(11, 800) * 7.3
    advance_rounds(at_once, moments)
    for seconds in np.diff(moments).tolist():
        advance(by_turns, seconds)
    assert np.array_equal(at_once, by_turns)


def test_who_does_not_work_never_gets_there() -> None:
    columns = three_jobs()
    columns[DELAY, 1] = 2.0
    assert crossings(columns, 10.0).tolist() == [10 + 1e6 / 0.1, 12 + 1e7 / 1.7, math.inf]
