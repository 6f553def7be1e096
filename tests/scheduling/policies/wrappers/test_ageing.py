"""No job starves under any policy: it starts within a bound of the worst completion time under first in, first out.

First in, first out is the independent measure of a fair time. Its worst completion time is within 3 times the shortest possible
one, whatever arrives (Bender, Chakrabarti, Muthukrishnan, SODA 1998).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.las import las
from paceline.scheduling.policies.paceline import paceline
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.policies.serving_order import fifo, srtf
from paceline.scheduling.policies.themis import themis
from paceline.scheduling.policies.wrappers.ageing import PATIENCE, aged, aged_by_deadlines
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Decision, Policy, State
from scheduling_toys import FREE, elastic, ends, rigid, simulated, state

ONE = Fleet((NodeGroup.of("T4", 1, 8, price=0.5),))
ROUNDS = ClusterSettings(round_s=25.0, restart_s=0.0)
OWN_RULES = {"kueue"}
"""Schedulers of a cluster, simulated as they are: Kueue's BestEffortFIFO lets small jobs pass a large one."""
every_policy = pytest.mark.parametrize("name", sorted(set(POLICIES) - OWN_RULES))


def stream(count: int, gap_s: float, length_s: float, devices: int) -> list[Job]:
    """Small jobs that arrive at equal distances."""
    return [rigid(f"small {n}", length_s, devices, gap_s * n) for n in range(count)]


def worst_wait(jobs: list[Job], policy: Policy) -> float:
    """Longest time to a first start, over the worst completion time under first in, first out."""
    fair_s = max(outcome.jct_s for outcome in simulated(jobs, fifo, ONE, ROUNDS).outcomes)
    outcomes = simulated(jobs, policy, ONE, ROUNDS).outcomes
    assert all(outcome.end_s > 0 for outcome in outcomes)
    return max(outcome.start_s - outcome.job.arrival_s for outcome in outcomes) / fair_s


STREAM = [*stream(30, 50, 100, 4), rigid("large", 100, 8, 60)]
"""Half the cluster is asked for every 50 s for 100 s, and once all of it."""
STARVE = ("deadline", "goodput", "hesrpt", "paceline", "queueing", "sia", "srtf", "themis")


@every_policy
def test_a_large_job_starts_among_small_ones(name: str) -> None:
    assert worst_wait(STREAM, POLICIES[name].decide) <= PATIENCE


@pytest.mark.parametrize("name", STARVE)
def test_without_ageing_it_waits_for_the_end_of_the_stream(name: str) -> None:
    assert POLICIES[name].starves and worst_wait(STREAM, POLICIES[name].published) > PATIENCE


@st.composite
def adversaries(draw: st.DrawFn) -> list[Job]:
    """A stream of small jobs, some of them elastic, and up to two large ones."""
    devices, load = draw(st.integers(1, 4)), draw(st.sampled_from([0.7, 0.85, 0.95, 1.0]))
    gap_s = devices * 100 / 8 / load
    jobs = []
    for n, length_s in enumerate(draw(st.lists(st.sampled_from([50, 100, 150]), min_size=20, max_size=60))):
        grows = draw(st.booleans()) and draw(st.booleans())
        common = {"arrival_s": gap_s * n, "devices": devices}
        jobs.append(elastic(f"small {n}", length_s, **common) if grows else rigid(f"small {n}", length_s, **common))
    for n in range(draw(st.integers(1, 2))):
        arrival_s = gap_s * draw(st.integers(0, 10))
        jobs.append(rigid(f"large {n}", draw(st.sampled_from([50, 200, 400])), draw(st.integers(5, 8)), arrival_s))
    return jobs


@pytest.mark.long
@every_policy
@settings(max_examples=40)
@given(jobs=adversaries())
def test_no_job_starves_whatever_arrives(name: str, jobs: list[Job]) -> None:
    """Twice: until it is overdue, and until the jobs that were overdue before it have ended their lease."""
    assert worst_wait(jobs, POLICIES[name].decide) <= 2 * PATIENCE


@pytest.mark.parametrize(("policy", "known", "devices", "count"), [(paceline, False, 1, 300), (themis, True, 4, 200)])
def test_jobs_of_equal_length_take_no_turns_in_a_backlog(policy: Policy, known: bool, devices: int, count: int) -> None:
    """Equal jobs on 30 of 32 devices, and a job of 16, which leaves a backlog. Taking turns would take up to a third longer."""
    fleet = Fleet((NodeGroup.of("T4", 4, 8, price=0.5),))
    jobs = [rigid(f"small {n}", 1800, devices, 60 * devices * n) for n in range(count)]
    jobs = sorted([*jobs, rigid("large", 3600, 16, 3000)], key=lambda job: job.arrival_s)

    def mean_s(policy: Policy) -> float:
        runs = partial(DurationRun, durations_known=known)
        outcomes = simulate(jobs, fleet, policy, runs, ClusterSettings()).outcomes
        return float(np.mean([outcome.jct_s for outcome in outcomes]))

    assert mean_s(aged(policy)) < mean_s(fifo)


def test_it_is_overdue_after_four_times_the_mean_run_and_its_own_length() -> None:
    """Small jobs run for 100 s each."""

    def start_s(length_s: float) -> float:
        jobs = [*stream(60, 50, 100, 4), rigid("large", length_s, 8)]
        return next(o.start_s for o in simulated(jobs, aged(srtf), ONE, FREE).outcomes if o.job.name == "large")

    assert start_s(300) == pytest.approx(4 * 100, rel=0.15)  # running jobs count too
    assert start_s(1200) == pytest.approx(1200, rel=0.01)


def test_it_keeps_its_devices_as_long_as_it_had_waited() -> None:
    jobs = [*stream(200, 50, 100, 4), rigid("large", 4000, 8)]
    outcomes = simulate(jobs, ONE, aged(shortest), DurationRun, FREE).outcomes  # lengths are unknown
    spans = next(outcome.spans for outcome in outcomes if outcome.job.name == "large")
    lease_s = spans[0].end_s - spans[0].start_s
    assert lease_s == pytest.approx(spans[0].start_s)
    assert PATIENCE * lease_s <= spans[1].start_s - lease_s <= 1.5 * PATIENCE * lease_s


def shortest(now: State) -> Decision:
    """Serve the smallest demand first, without any knowledge of lengths."""
    devices, left = np.zeros(len(now.jobs), np.int64), int(now.capacity[0])
    for index in np.argsort(now.requested, kind="stable").tolist():
        if now.requested[index] <= left:
            devices[index] = now.requested[index]
            left -= int(devices[index])
    return Decision(devices=devices, type_index=np.zeros(len(devices), np.int64))


def overdue(jobs: list[Job], **also: Any) -> State:
    """Jobs at 1,000 s, where many short ones ended before."""
    return state(jobs, ONE, time_s=1000.0, ended=1000, ended_ran_s=10.0, **also)


def test_overdue_jobs_take_half_of_the_devices_and_the_policy_gives_out_the_rest() -> None:
    held = [rigid(f"runs {n}", 5000, 2) for n in range(4)]
    late = [rigid(f"late {n}", 500, 3, 1.0 + n) for n in range(3)]
    now = overdue([*held, *late], devices=np.array([2, 2, 2, 2, 0, 0, 0]), type_index=np.array([0] * 4 + [-1] * 3))
    run_s = np.array([1000.0] * 4 + [0.0] * 3)[:, None]
    decision = aged(shortest)(State(**{**vars(now), "run_s": run_s}))
    assert decision.devices.tolist() == [2, 2, 0, 0, 3, 0, 0]
    assert "it was overdue: it had waited" in decision.reasons[4]
    again = json.loads(json.dumps(decision.memory))
    assert again == decision.memory and list(again["aged"]) == ["late 0"]


def test_an_elastic_job_gets_its_equal_share() -> None:
    now = overdue([rigid("runs", 5000, 8), elastic("late", 900, 1.0)], devices=np.array([8, 0]), type_index=np.array([0, -1]))
    decision = aged(las)(State(**{**vars(now), "run_s": np.array([[1000.0], [0.0]])}))
    assert decision.devices.tolist() == [0, 4]


def test_devices_of_jobs_that_may_not_be_stopped_are_drained() -> None:
    jobs = [*(replace(job, preemptible=False) for job in stream(40, 50, 100, 4)), rigid("large", 100, 8, 60)]
    outcomes = simulated(jobs, aged(srtf), ONE, FREE).outcomes
    assert all(len(outcome.spans) == 1 for outcome in outcomes)
    assert next(outcome.start_s for outcome in outcomes if outcome.job.name == "large") < 60 + 4 * 150 + 100
    alone = simulated(jobs, srtf, ONE, FREE).outcomes
    assert next(outcome.start_s for outcome in alone if outcome.job.name == "large") > 2000


def test_jobs_without_a_deadline_start_and_promised_deadlines_are_kept() -> None:
    due = [rigid(f"due {n}", 100, 4, 50.0 * n, deadline_s=50.0 * n + 300) for n in range(40)]
    jobs = [*due, rigid("large", 100, 8, 60)]

    def start_s(policy: Policy) -> float:
        outcomes = simulated(jobs, policy, ONE, FREE).outcomes
        assert all(outcome.removed or outcome.met for outcome in outcomes)
        return next(outcome.start_s for outcome in outcomes if outcome.job.name == "large")

    assert start_s(deadline) > 2000 > 4 * 300 > start_s(aged_by_deadlines(deadline))


def test_where_no_job_is_overdue_the_policy_decides_alone() -> None:
    jobs = [rigid(f"{n}", 100, 1 + n % 3, 10.0 * n) for n in range(12)]
    assert ends(simulated(jobs, aged(las), ONE, FREE)) == ends(simulated(jobs, las, ONE, FREE))
