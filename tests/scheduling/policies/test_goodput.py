"""Pollux's power mean: the best of all divisions, nobody left without, restarts charged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.policies.goodput import goodput
from paceline.scheduling.simulate.schedule import ClusterSettings
from scheduling_toys import Fleet, audit, elastic, ends, many_jobs, rigid, simulated, state


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=8), st.integers(60, 10**5))
def test_nobody_is_left_without_devices_where_there_are_as_many(steps: list[int], age: int) -> None:
    devices = goodput(state([elastic(f"{i}", work) for i, work in enumerate(steps)], time_s=age)).devices
    assert devices.min() >= 1 and devices.sum() <= 8


def test_a_restart_must_be_worth_it() -> None:
    """A job that would run on one more device stays while it is young."""
    held = {"devices": np.array([4, 3]), "type_index": np.array([0, 0])}
    jobs = [elastic("a", 100), elastic("b", 100)]
    assert goodput(state(jobs, time_s=60.0, **held)).devices.tolist() == [4, 3]
    assert goodput(state(jobs, time_s=1e6, **held)).devices.sum() == 8


def test_a_job_of_this_moment_starts_though_there_are_no_rounds() -> None:
    assert ends(simulated([elastic("a", 100)], goodput))["a"] < 200


def test_rigid_jobs_get_what_they_ask_for() -> None:
    devices = goodput(state([rigid("a", 10, 5), elastic("b", 10)], time_s=1e6)).devices
    assert devices[0] == 5 and devices[1] >= 1


@given(many_jobs())
def test_every_job_ends(jobs: list[Job]) -> None:
    audit(simulated(jobs, goodput, settings=ClusterSettings(round_s=60.0, restart_s=10.0)), jobs)


def test_several_types_are_refused() -> None:
    with pytest.raises(UserError, match="one type"):
        goodput(state([elastic("a", 1)], Fleet.named("1x4xT4 + 1x4xA100")))
