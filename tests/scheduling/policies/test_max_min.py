"""``scheduling.policies.max_min``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.max_min import max_min

RIGID = Job(name="rigid", steps=1)


def even(*speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices))


def test_each_job_gets_the_type_on_which_it_is_better() -> None:
    """Agnostic shares are the same for both."""
    now = state("1x1xT4 + 1x1xA100", [even(3.0, 1.0), even(1.0, 3.0)], RIGID)
    shares = max_min(now).memory.shares
    assert shares[0, 0] > 0.99 and shares[1, 1] > 0.99
    blind = max_min(now, aware=False).memory.shares
    assert abs(blind[0] - blind[1]).max() < 0.02


def test_a_heavier_job_gets_more_time() -> None:
    jobs = [replace(RIGID, name=str(weight), weight=weight) for weight in (1.0, 3.0)]
    shares = max_min(state("1x1xT4", [even(1.0)] * 2, jobs)).memory.shares
    assert abs(shares[1, 0] - 0.75) < 0.01


def test_no_jobs_that_can_run_are_no_error() -> None:
    assert max_min(state("1x1xT4", [even(0.0)], RIGID)).devices.tolist() == [0]
