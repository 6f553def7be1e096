"""Aggressive backfill: the first waiting job is never delayed, and priorities take devices from lower ones."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.conservative import conservative
from paceline.scheduling.policies.backfill.easy import easy, priority
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.state import Policy
from scheduling_toys import FREE, audit, ends, rigid, simulated, state

TEN = Fleet.named("1x10xT4")
EIGHT = Fleet.named("1x8xT4")


def starts(jobs: list[Job], policy: Policy, fleet: Fleet = TEN) -> dict[str, float]:
    return {outcome.job.name: outcome.start_s for outcome in simulated(jobs, policy, fleet).outcomes}


def example() -> list[Job]:
    """Two running jobs, a large one that waits, a third that would wait longer, and a short and a narrow one behind them."""
    return [
        rigid("r1", 30, 4),
        rigid("r2", 60, 4),
        rigid("head", 40, 6, 1.0),
        rigid("third", 50, 8, 2.0),
        rigid("short", 25, 2, 3.0),
        rigid("narrow", 200, 2, 4.0),
    ]


def test_the_example_by_hand() -> None:
    """The short job ends at 28, before the head needs its devices at 30. The narrow one must leave the head its 6 until 60."""
    assert starts(example(), fifo) == {"r1": 0, "r2": 0, "head": 30, "third": 70, "short": 70, "narrow": 95}
    for policy in (easy, conservative):
        assert starts(example(), policy) == {"r1": 0, "r2": 0, "head": 30, "third": 70, "short": 3, "narrow": 60}


def test_easy_may_delay_the_second_and_conservative_may_not() -> None:
    """At 10 the head has 8 from 50 on. A job of 2 for 500 s fits beside it, and takes 2 that the second needs at 100."""
    jobs = [rigid("run", 50, 6), rigid("head", 50, 8, 1.0), rigid("second", 50, 10, 2.0), rigid("long", 500, 2, 10.0)]
    assert starts(jobs, easy) == {"run": 0, "head": 50, "second": 510, "long": 10}
    assert starts(jobs, conservative) == {"run": 0, "head": 50, "second": 100, "long": 150}


@st.composite
def known_jobs(draw: st.DrawFn) -> list[Job]:
    return [
        rigid(f"j{n}", float(draw(st.integers(1, 200))), draw(st.integers(1, 8)), float(draw(st.integers(0, 300))))
        for n in range(draw(st.integers(2, 10)))
    ]


def brute_force(jobs: list[Job], devices: int) -> dict[str, float]:
    """Starts under conservative backfill with exact lengths: each job in turn at the first second that leaves all earlier."""
    used, starts = np.zeros(6000, int), {}
    for job in sorted(jobs, key=lambda job: job.arrival_s):
        first = int(job.arrival_s)
        while used[first : first + int(job.duration_s)].max() + job.devices > devices:
            first += 1
        used[first : first + int(job.duration_s)] += job.devices
        starts[job.name] = float(first)
    return starts


@given(known_jobs())
@settings(max_examples=12, deadline=None)
def test_with_exact_lengths_conservative_is_the_first_fit_of_every_second(jobs: list[Job]) -> None:
    assert starts(jobs, conservative, EIGHT) == brute_force(jobs, 8)


@given(known_jobs())
@settings(max_examples=12, deadline=None)
def test_easy_never_delays_the_first_that_waits(jobs: list[Job]) -> None:
    """The expected start of the head at each decision is never later than at the one before."""
    promised: dict[str, float] = {}

    def checked(given: object) -> object:
        decision = easy(given)  # type: ignore[arg-type]
        waiting = np.flatnonzero(decision.devices == 0).tolist()
        if waiting:
            left = sorted(
                (given.outlooks[i].seconds_left(0, 8)[int(n)], int(n))  # type: ignore[attr-defined]
                for i, n in enumerate(decision.devices)
                if n
            )
            head, free = given.jobs[waiting[0]], 8 - sum(n for _, n in left)  # type: ignore[attr-defined]
            start = given.time_s  # type: ignore[attr-defined]
            for seconds, n in left:
                if free >= head.devices:
                    break
                free, start = free + n, given.time_s + seconds  # type: ignore[attr-defined]
            assert start <= promised.get(head.name, math.inf) + 1e-6
            promised[head.name] = start
        return decision

    schedule = simulated(jobs, checked, EIGHT)  # type: ignore[arg-type]
    audit(schedule, jobs)
    for outcome in schedule.outcomes:
        assert outcome.start_s <= promised.get(outcome.job.name, math.inf) + 1e-6


def test_a_stated_limit_is_the_length_where_nothing_is_predicted() -> None:
    """The short job fits before the head by its real length, not by its limit."""

    def began(limit_s: float, knows: bool) -> float:
        jobs = [rigid("run", 100, 6), rigid("head", 50, 8, 1.0), rigid("short", 50, 2, 2.0, limit_s=limit_s)]
        schedule = simulate(jobs, EIGHT, easy, partial(DurationRun, durations_known=knows), FREE)
        return schedule.outcomes[2].start_s

    assert [began(60, False), began(1000, False), began(1000, True), began(0, False)] == [2, 150, 2, 2]


def test_an_unknown_length_lets_no_job_pass() -> None:
    jobs = [rigid("run", 0, 6, steps=100.0), rigid("head", 50, 8, 1.0), rigid("short", 5, 2, 2.0)]
    waiting = state(jobs, EIGHT, devices=np.array([6, 0, 0]), type_index=np.array([0, -1, -1]))
    for outlook in waiting.outlooks:
        outlook.seconds_left = lambda group, most: np.full(most + 1, math.nan)  # type: ignore[method-assign]
    assert easy(waiting).devices.tolist() == conservative(waiting).devices.tolist() == [6, 0, 0]


def test_another_type_is_not_blocked() -> None:
    two = Fleet.named("1x8xH100 + 1x8xA100")
    h, a = two.types
    jobs = [
        rigid("h-run", 7200, 8, device_types=(h,)),
        rigid("h-head", 3600, 8, 60.0, device_types=(h,)),
        rigid("a-job", 3600, 8, 120.0, device_types=(a,)),
    ]
    for policy in (easy, conservative):
        assert starts(jobs, policy, two) == {"h-run": 0, "h-head": 7200, "a-job": 120}


@pytest.mark.parametrize(
    ("condition", "high", "low_restarts"),
    [({}, 600, 1), ({"preemptible": False}, 36000, 0), ({"min_run_s": 3600.0}, 3600, 1), ({"grace_s": 60.0}, 660, 1)],
    ids=str,
)
def test_a_higher_priority_takes_the_devices_that_it_may(condition: dict[str, float], high: float, low_restarts: int) -> None:
    jobs = [
        rigid("low", 36000, 8, priority=1, **condition),
        rigid("high", 3600, 8, 600.0, priority=100),
        rigid("tick", 1, 8, 3600.0),
    ]
    schedule = simulated(jobs, priority, EIGHT)
    low, first, _ = schedule.outcomes
    assert (first.start_s, low.restarts) == (high, low_restarts)
    assert starts(jobs, easy, EIGHT)["high"] == 36000


def test_none_loses_devices_in_vain() -> None:
    """Two of three low jobs suffice, the latest started; a high job that cannot fit takes none."""
    low = [rigid(f"low{n}", 1000, 2, float(n), priority=1) for n in range(3)]
    schedule = simulated([*low, rigid("high", 10, 6, 50.0, priority=5)], priority, EIGHT)
    assert [outcome.restarts for outcome in schedule.outcomes] == [0, 1, 1, 0]
    keeps = simulated([rigid("k", 100, 4, preemptible=False), *low, rigid("high", 10, 6, 50.0, priority=5)], priority, EIGHT)
    assert ends(keeps)["high"] == 110 and keeps.outcomes[2].spans[0].end_s == 100, "no sooner, since it could not start"


def test_a_rack_is_kept_for_the_job_that_needs_it() -> None:
    """A stream of small jobs fills every gap; the rack comes free as those on it end."""
    racks = Fleet.named("4x8xA100, 100Gb/s, leaf-nodes=2, oversubscription=2:1")
    stream = [rigid(f"s{n}", 1000.0, 4, 125.0 * n) for n in range(40)]
    for policy in (easy, conservative):
        schedule = simulated([*stream, rigid("big", 1000, 16, 1.0, topology="rack")], policy, racks)
        (span,) = schedule.outcomes[-1].spans
        assert span.start_s <= 1400 and len({node // 2 for node, _ in span.placement}) == 1
