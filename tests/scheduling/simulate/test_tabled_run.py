"""A job with a table of speeds runs on what was measured, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.tabled_run import TabledRun
from scheduling_toys import elastic

TABLE = {"T4": {1: 2.0, 2: 3.0, 4: 5.0}}


def test_nothing_is_assumed_between_the_sizes_measured() -> None:
    run = TabledRun(elastic("a", 30), ("T4",), TABLE)
    assert run.outlook.goodput(0, 5).tolist() == [0, 2, 3, 0, 5, 0] and run.max_devices() == 4
    assert run.seconds_left(0, 4).tolist() == [np.inf, 15, 10, np.inf, 6]
    assert run.goodput(0, 1).tolist() == [0, 2] and run.relative_spread() == 0
    run.place("T4", (1, 1))
    assert run.speed == 3
    run.goes_to(3.0)
    assert run.seconds_left(0, 1)[1] == 1.5


def test_limits_and_rigid_jobs_leave_fewer_sizes() -> None:
    assert TabledRun(elastic("a", 30, min_devices=2, max_devices=3), ("T4",), TABLE).goodput(0, 4).tolist() == [0, 0, 3, 0, 0]
    assert TabledRun(Job(name="a", steps=30, devices=4), ("T4",), TABLE).goodput(0, 4).tolist() == [0, 0, 0, 0, 5]


def test_what_was_not_measured_is_refused() -> None:
    for job in (Job(name="a", steps=30, devices=3), elastic("a", 30, device_types=("V100",)), Job(name="a", duration_s=3)):
        with pytest.raises(UserError, match="job 'a'"):
            TabledRun(job, ("T4",), TABLE)
