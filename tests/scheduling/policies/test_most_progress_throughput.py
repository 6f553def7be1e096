"""The most progress a second."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.most_progress import max_throughput

RIGID = Job(name="rigid", steps=1)


def even(*speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices))


def test_the_fastest_job_gets_all() -> None:
    shares = max_throughput(state("1x1xT4", [even(1.0), even(3.0)], RIGID)).memory.shares
    assert shares.ravel() == pytest.approx([0, 1], abs=0.01)


def test_the_sum_counts_not_the_fastest_pair() -> None:
    """The second is fastest on the A100, but the first gains more there."""
    shares = max_throughput(state("1x1xT4 + 1x1xA100", [even(1.0, 8.0), even(5.0, 9.0)], RIGID)).memory.shares
    assert shares == pytest.approx(np.array([[0, 1], [1, 0]]), abs=0.01)
