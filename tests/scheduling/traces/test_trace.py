"""A mistake in a job names the row that it was read from."""

from __future__ import annotations

import pytest

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.traces.trace import job_of_row


def test_the_row_is_named_once() -> None:
    row = Row({"n": "x"}, 3, 4, "t.csv")
    with pytest.raises(UserError, match=r"^t\.csv, row 3 \(line 4\): job 'a' states no work; give duration_s"):
        job_of_row(row, lambda: Job(name="a"))
    with pytest.raises(UserError, match=r"^t\.csv, row 3 \(line 4\), column n: 'x' is not a whole number$"):
        job_of_row(row, lambda: Job(name="a", devices=_wrong(row)))
    assert job_of_row(row, lambda: Job(name="a", steps=1)) == Job(name="a", steps=1)


def _wrong(row: Row) -> int:
    raise row.wrong("n", "a whole number")
