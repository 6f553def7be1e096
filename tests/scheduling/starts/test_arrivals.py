"""Jobs still to come: stretches of the history."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.starts.arrivals import LEAST_JOBS, Arrivals
from queues import NOW, ended


def test_futures_have_the_rate_of_the_history_and_end_at_the_horizon() -> None:
    past = [ended(f"j{at}", 1, 60.0, ago_s=1800.0 * at + 60) for at in range(480)]
    arrivals = Arrivals.of(past, NOW)
    drawn = arrivals.draw(16, 0, 86400.0)
    counts = [len(moments) for moments, _ in drawn]
    assert min(counts) >= 40 and max(counts) <= 56  # 48 a day
    assert all(
        np.all(np.diff(moments) >= 0) and moments[-1] <= 86400.0 and len(set(rows)) == len(rows) for moments, rows in drawn
    )
    assert [m.tolist() for m, _ in arrivals.draw(16, 0, 86400.0)] == [m.tolist() for m, _ in drawn]
    assert not Arrivals.of(past[:1], NOW) and len(Arrivals.of((), NOW).draw(3, 0)) == 3


def test_a_few_jobs_are_no_history() -> None:
    jobs = [ended(str(number), 1, 60.0, ago_s=3600.0 * number + 60) for number in range(LEAST_JOBS)]
    assert Arrivals.of(jobs, NOW) and not Arrivals.of(jobs[1:], NOW)
