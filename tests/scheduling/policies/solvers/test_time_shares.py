"""``scheduling.policies.time_shares``: from shares to rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.policies.solvers.time_shares import PUBLISHED, USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

RIGID = Job(name="rigid", steps=1)


def even(*speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=1000.0)


def given(*rows: list[float]) -> Any:
    def shares(demand: ShareDemand) -> tuple[Array, Any]:
        return np.array(rows)[demand.rows], None

    return shares


def rounds(first: State, count: int, shares: Any, sharing: RoundRules = USUAL) -> Array:
    """Rounds that each job got of each type."""
    received, run_s, now = np.zeros(first.run_s.shape), np.zeros(first.run_s.shape), first
    for _ in range(count):
        decision = time_shared(now, shares, sharing)
        check(now, decision)
        for job in np.flatnonzero(decision.devices):
            received[job, decision.type_index[job]] += 1
        run_s = received * 360.0
        now = replace(now, time_s=now.time_s + 360, run_s=run_s, memory=decision.memory)
    return received


def check(now: State, decision: Decision) -> None:
    held = decision.devices > 0
    used = np.bincount(decision.type_index[held], decision.devices[held], len(now.capacity))
    assert (used <= now.capacity).all()


@pytest.mark.parametrize("sharing", [RoundRules(), USUAL, replace(PUBLISHED, late_hold=False), RoundRules(forgets=False)])
def test_rounds_follow_the_shares(sharing: RoundRules) -> None:
    """Three jobs of one device on two devices: 0.9, 0.7 and 0.4 of the time."""
    now = state("2x1xT4", [even(1.0)] * 3, RIGID)
    received = rounds(now, 100, given([0.9], [0.7], [0.4]), sharing)
    assert received.ravel() == pytest.approx([90, 70, 40], abs=4)


def test_a_job_changes_types_as_its_shares_say() -> None:
    now = state("1x1xT4 + 1x1xA100", [even(1.0, 2.0)] * 2, RIGID)
    received = rounds(now, 60, given([0.75, 0.25], [0.25, 0.75]))
    assert received == pytest.approx(np.array([[45, 15], [15, 45]]), abs=4)


def test_large_jobs_are_passed_over_by_small_ones_that_fit() -> None:
    now = state("3x1xT4", [even(1.0)] * 3, [replace(RIGID, name=str(n), devices=n) for n in (2, 2, 1)])
    decision = time_shared(now, given([0.7], [0.6], [0.1]))
    assert decision.devices.tolist() == [2, 0, 1]


def test_devices_that_no_share_claims_go_to_any_job_or_to_none() -> None:
    now = state("2x1xT4", [even(1.0)] * 2, RIGID)
    assert time_shared(now, given([1.0], [0.0])).devices.tolist() == [1, 1]
    assert time_shared(now, given([1.0], [0.0]), RoundRules(fills=False)).devices.tolist() == [1, 0]


def test_one_that_came_since_has_no_share_until_the_renewal() -> None:
    """It runs on what is left; in Gavel's simulator it holds that and does not run."""
    early = state("2x1xT4", [even(1.0)], RIGID)
    for late_hold, devices in ((False, [1, 1]), (True, [1, 0])):
        sharing = RoundRules(renew_s=1920, late_hold=late_hold)
        memory = time_shared(early, given([0.9]), sharing).memory
        now = replace(state("2x1xT4", [even(1.0)] * 2, RIGID), time_s=early.time_s + 360, memory=memory)
        decision = time_shared(now, given([0.9], [0.9]), sharing)
        assert decision.devices.tolist() == devices
        later = replace(now, time_s=early.time_s + 2000, memory=decision.memory)
        assert time_shared(later, given([0.9], [0.9]), sharing).devices.tolist() == [1, 1]


def test_shares_are_kept_while_nothing_changes() -> None:
    calls = []

    def shares(demand: ShareDemand) -> tuple[Array, Any]:
        calls.append(demand.past)
        return np.ones(demand.speed.shape), len(calls)

    now = state("2x1xT4", [even(1.0)] * 2, RIGID)
    for _ in range(3):
        now = replace(now, time_s=now.time_s + 360, memory=time_shared(now, shares, RoundRules()).memory)
    assert calls == [None]
    faster = replace(now, outlooks=[even(2.0)] * 2)
    time_shared(faster, shares, RoundRules())
    assert calls == [None, 1]


def test_jobs_that_no_type_can_run_wait() -> None:
    now = state("2x1xT4", [even(0.0), even(1.0)], RIGID)
    assert time_shared(now, given([1.0], [1.0])).devices.tolist() == [0, 1]


def test_work_that_nobody_knows_is_refused() -> None:
    unknown = replace(even(1.0), left=float("nan"))
    with pytest.raises(UserError, match="the remaining work of job 'job 0' is unknown"):
        _ = ShareDemand.of(state("2x1xT4", [unknown], RIGID)).left
    assert ShareDemand.of(state("2x1xT4", [even(2.0)], RIGID)).left.tolist() == [1000.0]


def test_a_round_lasts_until_a_start_is_a_small_part_of_it() -> None:
    """A start of 30 s takes a twentieth of 600 s. Meanwhile jobs keep their devices, and free ones go to jobs that wait."""
    now = replace(state("2x1xT4", [even(1.0)] * 3, RIGID), restart_s=np.full(3, 30.0))
    held = []
    for second in range(0, 1500, 300):
        decision = time_shared(replace(now, time_s=float(second)), given([0.7], [0.7], [0.6]))
        held.append(tuple(decision.devices))
        run_s = now.run_s + 300.0 * decision.devices[:, None]
        now = replace(now, memory=decision.memory, devices=decision.devices, type_index=decision.type_index, run_s=run_s)
    assert held[0] == held[1] and held[2] == held[3] and held[1] != held[2]
    assert decision.wake_s == 1800
