"""A rigid job of which only a duration is known."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.simulate.run import DurationRun, Reports
from scheduling_toys import rigid


def test_it_runs_only_on_the_devices_asked_for() -> None:
    run = DurationRun(rigid("a", 60, devices=2))
    assert run.outlook.goodput(0, 3).tolist() == [0, 0, 1, 0] and run.outlook.goodput(0, 1).tolist() == [0, 0]
    assert run.max_devices() == 2 and run.relative_spread() == 0 and not isinstance(run, Reports)


def test_its_duration_is_known_only_where_it_says_so() -> None:
    job = rigid("a", 60)
    assert np.isnan(DurationRun(job).seconds_left(0, 1)[1])
    known = DurationRun(job, durations_known=True)
    known.goes_to(12.0)
    assert known.seconds_left(0, 1).tolist() == [np.inf, 12.0]


def test_it_goes_while_it_holds_devices_and_ends_with_its_duration() -> None:
    run = DurationRun(rigid("a", 60))
    assert (run.to_next, run.speed, run.finished) == (60, 0, False)
    run.place("T4", (1,))
    assert run.speed == 1
    run.place("", ())
    assert run.speed == 0
    run.refresh()
    run.cross()
    assert run.finished
