"""What every policy promises: it is pure, gives no more than there is, and lets every job end."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.scheduling.job import CHOICES, Job
from paceline.scheduling.policies.registry import POLICIES, check_queues, configured, policy_named
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.state import State
from scheduling_toys import FREE, SMALL, Fleet, audit, many_jobs, simulated, state

FEW = settings(max_examples=settings.default.max_examples // 5)
ARRAYS = ("capacity", "arrival_s", "requested", "devices", "type_index", "attained_s", "run_s", "restarts")
ROUNDS = ClusterSettings(round_s=60.0, restart_s=10.0)
every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def moment(jobs: list[Job], held: list[int], fleet: Fleet = SMALL) -> State:
    """Some jobs run already, on as many devices as they may use and there are."""
    devices, left = np.zeros(len(jobs), np.int64), fleet.groups[0].devices
    for index, (job, wish) in enumerate(zip(jobs, held, strict=False)):
        count = min(wish, left) if job.adapts else job.devices * (wish > 0)
        if count <= left:
            devices[index], left = count, left - count
    run_s = np.where(devices > 0, 100.0, 0.0)[:, None] * np.eye(len(fleet.groups))[0]
    return state(
        jobs,
        fleet,
        time_s=2000.0,
        devices=devices,
        type_index=np.where(devices > 0, 0, -1),
        run_s=run_s,
        attained_s=run_s.sum(1) * devices,
    )


STATES: dict[str, Any] = {"jobs": many_jobs(deadlines=True), "held": st.lists(st.integers(0, 4), min_size=8, max_size=8)}


@every_policy
@FEW
@given(**STATES)
def test_a_policy_leaves_the_state_as_it_was_and_repeats_itself(name: str, jobs: list[Job], held: list[int]) -> None:
    seen = moment(jobs, held)
    before = {field: getattr(seen, field).copy() for field in ARRAYS}
    memory = copy.deepcopy(seen.memory)
    first, second = (POLICIES[name].decide(seen) for _ in range(2))
    assert all((getattr(seen, field) == before[field]).all() for field in ARRAYS) and seen.memory == memory
    assert first.devices.tolist() == second.devices.tolist() and first.wake_s == second.wake_s
    assert first.removed == second.removed and first.reasons == second.reasons
    # What it remembers is its own: deciding again with it changes nothing in it.
    remembered = copy.deepcopy(first.memory)
    POLICIES[name].decide(moment_with(seen, first.memory))
    assert repr(first.memory) == repr(remembered)


def moment_with(seen: State, memory: Any) -> State:
    return State(**{**{field: getattr(seen, field) for field in State.__dataclass_fields__}, "memory": memory})


@every_policy
@FEW
@given(**STATES, capacity=st.integers(0, 8))
def test_no_policy_gives_more_than_there_is(name: str, jobs: list[Job], held: list[int], capacity: int) -> None:
    seen = moment(jobs, [0] * len(jobs) if capacity < 8 else held)
    decision = POLICIES[name].decide(State(**{**vars(seen), "capacity": np.array([capacity])}))
    assert decision.devices.shape == (len(jobs),) and (decision.devices >= 0).all()
    assert decision.devices.sum() <= capacity
    assert decision.order is None or sorted(decision.order) == list(range(len(jobs)))
    for job, outlook, count in zip(jobs, seen.outlooks, decision.devices.tolist(), strict=True):
        assert not count or outlook.goodput(0, 8)[count] > 0, f"{job.name} cannot run on {count}"
    assert not any(decision.devices[index] for index in decision.removed)


@every_policy
@FEW
@given(jobs=many_jobs(most=5), how=st.sampled_from([FREE, ROUNDS]))
def test_under_every_policy_every_job_ends_and_a_second_run_is_the_first(
    name: str, jobs: list[Job], how: ClusterSettings
) -> None:
    schedule = simulated(jobs, POLICIES[name].decide, settings=how)
    audit(schedule, jobs)
    assert schedule.outcomes == simulated(jobs, POLICIES[name].decide, settings=how).outcomes


@every_policy
@FEW
@given(jobs=many_jobs(deadlines=True, most=5))
def test_with_deadlines_every_job_ends_or_is_told_why_not(name: str, jobs: list[Job]) -> None:
    audit(simulated(jobs, POLICIES[name].decide, settings=ROUNDS), jobs, removes=True)


CONSERVES = ("edf", "goodput", "las", "optimus", "queueing", "srtf")
"""Policies that leave no device free which a waiting job could use, of the size it asks for where they choose none."""


@pytest.mark.parametrize("name", CONSERVES)
@FEW
@given(**STATES)
def test_devices_do_not_idle_while_a_job_waits_that_fits(name: str, jobs: list[Job], held: list[int]) -> None:
    seen = moment(jobs, held)
    decision = POLICIES[name].decide(seen)
    left = 8 - int(decision.devices.sum())
    for index in np.flatnonzero(decision.devices == 0).tolist():
        speed = seen.outlooks[index].goodput(0, left)
        assert not (speed.any() if "devices" in POLICIES[name].adapts else speed[jobs[index].devices :].any())


def test_each_says_what_it_adapts_and_where_it_is_from() -> None:
    for name, entry in POLICIES.items():
        assert entry.adapts <= set(CHOICES) and entry.source and name == name.lower()
        assert policy_named(name) is entry


def test_an_unknown_policy_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UserError, match="fifo"):
        policy_named("fifa")


def test_systems_are_known_by_their_names() -> None:
    assert policy_named("Tiresias") is POLICIES["las"] and policy_named("pollux") is POLICIES["goodput"]
    with pytest.raises(UserError, match="unknown policy 'pollix'"):
        policy_named("pollix")


def test_settings_of_queues_go_to_the_policy_that_takes_them() -> None:
    queues = KueueSettings(queues={"a": ClusterQueue()})
    assert configured("fifo", queues) is POLICIES["fifo"].decide and configured("kueue", queues) is not POLICIES["kueue"].decide
    check_queues(["fifo", "kueue"], queues)
    with pytest.raises(UserError, match="settings of kueue, and none of the policies fifo, slurm takes them"):
        check_queues(["fifo", "slurm"], queues)
