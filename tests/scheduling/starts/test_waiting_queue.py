"""The queue at a moment: its order, its nodes, and where running jobs are."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.starts.verb import schedule_start
from queues import NOW, queue, runs, waits


def test_jobs_are_ordered_and_those_that_cannot_start_are_said() -> None:
    found = queue(
        runs("r", 8, 60.0),
        waits("late", 1, priority=5.0, since_s=10.0),
        waits("first", 1, priority=5.0, since_s=90.0),
        waits("high", 1, priority=9.0, since_s=1.0),
        waits("huge", 64, priority=1.0),
        waits("held", 1, reason="JobHeldUser"),
        waits("zero", 1),
        waits("slice", 1, priority=1.0, profile="1g.5gb"),
        waits("begins", 1, priority=4.0, reason="BeginTime", planned_start_s=NOW + 3600),
    )
    assert [job.name for job in found.waiting] == ["high", "first", "late", "begins"]
    assert [job.name for job in found.held] == ["held", "zero"]
    assert [(row.name, row.detail) for row in found.skipped] == [("huge", "64 of 8"), ("slice", "1 of 1g.5gb")]
    assert found.waiting[-1].eligible_s == NOW + 3600
    with pytest.raises(UserError, match="runs already"):
        found.job("r")
    with pytest.raises(UserError, match="first"):
        found.job("firts")


def test_the_id_of_an_array_stands_for_its_first_waiting_task() -> None:
    """squeue(1) prints the waiting tasks of an array in one row, ``208_[0-3%2]``."""
    tasks = [waits(f"208_{task}", 1, array="208", since_s=1.0) for task in (2, 3)]
    found = queue(runs("208_0", 1, 60.0, array="208"), *tasks)
    assert found.job("208").name == "208_2" and found.job("208_3").name == "208_3"
    answer = schedule_start(found, job="208", futures=8, hindcasts=0)
    assert answer.asked == "208_2" and answer.queue.remarks[0].startswith("208 is an array: the answer is for 208_2")
