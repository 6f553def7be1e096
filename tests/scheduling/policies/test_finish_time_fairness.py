"""``scheduling.policies.finish_time_fairness``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.finish_time_fairness import finish_time_fairness

RIGID = Job(name="rigid", steps=1)


def job(left: float, *speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=left)


def test_equals_get_equal_shares() -> None:
    shares = finish_time_fairness(state("1x1xT4", [job(1e5, 1.0)] * 2, RIGID, time_s=0.0)).memory.shares
    assert shares.ravel() == pytest.approx([0.5, 0.5], abs=0.01)


def test_who_waited_long_for_a_short_job_goes_first() -> None:
    """Alone on half the device both would take twice what is left; the first has waited ten times as long as that."""
    now = state("1x1xT4", [job(1000, 1.0), job(1e6, 1.0)], RIGID, time_s=2e4)
    shares = finish_time_fairness(now).memory.shares
    assert shares[0, 0] > 0.9


def test_the_largest_ratio_is_least() -> None:
    """Arrived now, on types that fit both: rho is that of a bisection by hand over the split of one device."""
    now = state("1x1xT4", [job(1000, 1.0), job(4000, 1.0)], RIGID, arrival_s=np.array([3600.0, 0.0]))
    share = finish_time_fairness(now).memory.shares[:, 0]
    splits = np.linspace(0.01, 0.99, 9801)
    worst = np.maximum((1000 / splits) / 2000, (3600 + 4000 / (1 - splits)) / 8000)
    rho = max(1000 / share[0] / 2000, (3600 + 4000 / share[1]) / 8000)
    assert rho == pytest.approx(worst.min(), rel=5e-3)


def test_time_alone_counts_what_was_done_already() -> None:
    """After 1,000 steps at half the device's speed, 2,000 seconds alone are behind it."""
    first = state("1x1xT4", [job(4000, 1.0), job(4000, 1.0)], RIGID, time_s=0.0)
    memory = finish_time_fairness(first).memory
    now = replace(first, time_s=2000.0, outlooks=[job(3000, 1.0), job(3000, 2.0)], memory=memory)
    past = finish_time_fairness(now).memory.past
    assert past["job 0"][0] == pytest.approx(2000.0)


def test_without_awareness_types_count_alike() -> None:
    now = state("1x1xT4 + 1x1xA100", [job(1e5, 3.0, 1.0), job(1e5, 1.0, 3.0)], RIGID, time_s=0.0)
    shares = finish_time_fairness(now, aware=False).memory.shares
    assert abs(shares[0] - shares[1]).max() < 0.05
    aware = finish_time_fairness(now).memory.shares
    assert aware[1, 1] > 0.98 and aware[0, 0] > 0.98
