"""``scheduling.policies.makespan``."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.policies.makespan import makespan

RIGID = Job(name="rigid", steps=1)


def job(left: float, *speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=left)


def test_who_has_more_left_gets_more_time() -> None:
    shares = makespan(state("1x1xT4", [job(100, 1.0), job(300, 1.0)], RIGID)).memory.shares
    assert shares.ravel() == pytest.approx([0.25, 0.75], abs=0.02)


def test_the_long_job_takes_the_fast_device() -> None:
    decision = makespan(state("1x1xT4 + 1x1xA100", [job(100, 1.0, 4.0), job(500, 1.0, 4.0)], RIGID))
    assert decision.type_index.tolist() == [0, 1]


def test_unknown_work_is_refused() -> None:
    with pytest.raises(UserError, match="the remaining work of job"):
        makespan(state("1x1xT4", [job(float("nan"), 1.0)], RIGID))
