"""``scheduling.policies.drf``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.drf import drf

RIGID = Job(name="rigid", steps=1)
ANY = Known(lambda kind, devices: devices)


def owned(owners: str, **others: object) -> list[Job]:
    return [replace(RIGID, name=str(n), owner=owner, **others) for n, owner in enumerate(owners)]  # type: ignore[arg-type]


def test_users_take_turns_whoever_came_first() -> None:
    decision = drf(state("4x1xT4", [ANY] * 6, owned("aaaabb")))
    assert decision.devices.tolist() == [1, 1, 0, 0, 1, 1]


def test_a_heavier_user_gets_its_multiple() -> None:
    jobs = [replace(job, weight=3.0 if job.owner == "b" else 1.0) for job in owned("aaaabbbb")]
    devices = drf(state("4x1xT4", [ANY] * 8, jobs)).devices
    assert (devices[:4].sum(), devices[4:].sum()) == (1, 3)


def test_where_one_job_fits_the_heavier_user_has_the_devices() -> None:
    jobs = [replace(RIGID, name="low", devices=4), replace(RIGID, name="high", devices=4, weight=100.0)]
    now = state("4x1xT4", [ANY] * 2, jobs, devices=np.array([4, 0]), type_index=np.array([0, -1]))
    assert drf(now).devices.tolist() == [0, 4]


def test_the_dominant_type_counts() -> None:
    """a may only use the scarce A100: one of two is half of it; b then takes its share of the T4s."""
    jobs = [replace(job, device_types=("A100",) if job.owner == "a" else ("T4",)) for job in owned("aabbbb")]
    jobs = [replace(job, device_types=("A100 SXM 40GB",)) if job.owner == "a" else job for job in jobs]
    now = state("4x1xT4 + 2x1xA100 SXM 40GB", [ANY] * 6, jobs)
    decision = drf(now)
    assert decision.devices.tolist() == [1] * 6
    assert list(decision.order or ())[:4] == [0, 2, 3, 1]


@pytest.mark.parametrize("held", [0, 1])
def test_a_job_stays_on_the_type_that_it_has(held: int) -> None:
    now = state("1x1xT4 + 1x1xA100", [ANY], RIGID, devices=np.array([1]), type_index=np.array([held]))
    assert drf(now).type_index.tolist() == [held]


def test_what_does_not_fit_is_passed_over() -> None:
    jobs = [replace(RIGID, name="large", devices=4), replace(RIGID, name="small")]
    assert drf(state("2x1xT4", [ANY] * 2, jobs)).devices.tolist() == [0, 1]
