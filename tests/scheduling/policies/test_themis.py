"""``scheduling.policies.themis``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_states import Known, state
from paceline.scheduling.job import Job
from paceline.scheduling.policies.themis import themis

RIGID = Job(name="rigid", steps=1)


def job(left: float, *speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=left)


def test_the_worst_off_are_offered_first() -> None:
    """All waited an hour; that is most beside the shortest job."""
    now = state("1x1xT4", [job(1e5, 1.0), job(1e3, 1.0), job(1e4, 1.0)], RIGID)
    assert themis(now).devices.tolist() == [0, 1, 0]


def test_a_lease_goes_on_until_it_ends() -> None:
    now = state("1x1xT4", [job(1e5, 1.0), job(1e3, 1.0)], RIGID, devices=np.array([1, 0]), type_index=np.array([0, -1]))
    during = replace(now, memory={"job 0": now.time_s + 60})
    decision = themis(during)
    assert decision.devices.tolist() == [1, 0] and decision.wake_s == now.time_s + 60
    assert themis(replace(now, memory={"job 0": now.time_s})).devices.tolist() == [0, 1]


def test_bidders_get_the_type_that_helps_them_most() -> None:
    now = state("1x1xT4 + 1x1xA100", [job(1e4, 1.0, 1.1), job(1e4, 1.0, 9.0)], RIGID)
    assert themis(now, offered=1.0).type_index.tolist() == [0, 1]


def test_what_no_bidder_takes_goes_to_the_others() -> None:
    assert themis(state("3x1xT4", [job(1e4, 1.0)] * 3, RIGID)).devices.tolist() == [1, 1, 1]


def test_a_lost_node_ends_its_lease() -> None:
    now = state("1x1xT4", [job(1e4, 1.0)] * 2, RIGID, devices=np.array([1, 1]), type_index=np.array([0, 0]))
    decision = themis(replace(now, memory={"job 0": 1e9, "job 1": 1e9}))
    assert decision.devices.sum() == 1
