"""Numbers of devices on which a job can run."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.policies.solvers.sizes import goodputs, grown, known_seconds, on_one_type, one_type
from paceline.scheduling.simulate.run import DurationRun
from scheduling_toys import Fleet, elastic, rigid, state

MIXED = Fleet.named("1x4xT4 + 1x4xA100")


def test_sizes_that_are_no_faster_than_a_smaller_one_are_left_out() -> None:
    assert grown(np.array([0, 2.0, 0, 2, 3, 2.5, 4])).tolist() == [1, 4, 6]
    assert grown(np.zeros(3)).tolist() == []


def test_the_type_that_a_job_holds_comes_first() -> None:
    jobs = [rigid("a", 1), rigid("b", 1, device_types=MIXED.types[:1])]
    assert on_one_type(state(jobs, MIXED, type_index=np.array([1, -1])), 0) == [1, 0]
    assert on_one_type(state(jobs, MIXED), 1) == [0]


def test_tables_end_with_what_a_job_may_use() -> None:
    moment = state([elastic("a", 10, max_devices=3)])
    assert len(goodputs(moment, 0, 0, 8)) == 4 and len(goodputs(moment, 0, 0, 2)) == 3
    assert known_seconds(moment, 0, 0, 8)[1] == 10


def test_work_that_nobody_knows_and_several_types_are_refused() -> None:
    job = rigid("a", 10)
    with pytest.raises(UserError, match="the remaining work of job 'a' is unknown"):
        known_seconds(state([job], outlooks=[DurationRun(job)]), 0, 0, 8)
    assert one_type(state([job]), "x", ("y",)) == 8
    with pytest.raises(UserError, match="the policy x shares out devices of one type only; use y or z"):
        one_type(state([job], MIXED), "x", ("y", "z"))
