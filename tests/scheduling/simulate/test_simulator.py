"""The event loop: closed forms, what holds for every schedule, nodes that fail, and policies that go nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as at_most
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.policies.edf import edf
from paceline.scheduling.policies.las import las
from paceline.scheduling.policies.serving_order import fifo, srtf
from paceline.scheduling.simulate.metrics import metrics
from paceline.scheduling.simulate.profiled_run import ProfiledRun
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings, RunningJob
from paceline.scheduling.simulate.simulator import MOST_IDLE, simulate
from paceline.scheduling.speeds.expected_speed import MeasuredEstimate
from paceline.scheduling.state import Decision, Policy, State
from scheduling_toys import FREE, SMALL, audit, ends, many_jobs, profile, rigid, runs, simulated

ROUNDS = ClusterSettings(round_s=60.0, restart_s=30.0)


def one_each(state: State) -> Decision:
    """What the test's policies begin with: nobody gets anything."""
    return Decision(devices=np.zeros(len(state.jobs), np.int64), type_index=np.zeros(len(state.jobs), np.int64))


@given(st.floats(0, 1e6), st.floats(0.1, 1e6), st.integers(1, 8), st.floats(0, 100))
def test_one_job_takes_its_duration_and_one_start(arrival: float, duration: float, devices: int, restart: float) -> None:
    settings = ClusterSettings(round_s=0.0, restart_s=restart)
    outcome = simulated([rigid("a", duration, devices, arrival)], fifo, settings=settings).outcomes[0]
    assert outcome.end_s == pytest.approx(arrival + restart + duration)
    assert (outcome.restarts, len(outcome.spans)) == (0, 1)
    assert outcome.device_s == pytest.approx((restart + duration) * devices)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.integers(5, 8), st.integers(4, 8), st.floats(0, 1e4))
def test_two_rigid_jobs_that_do_not_fit_together_follow_one_another(
    first: float, second: float, devices: int, more: int, gap: float
) -> None:
    schedule = simulated([rigid("a", first, devices), rigid("b", second, more, gap)], fifo)
    assert ends(schedule) == {"a": pytest.approx(first), "b": pytest.approx(max(first, gap) + second)}


def test_a_queue_of_equal_jobs_waits_as_an_m_d_1_queue() -> None:
    """Poisson arrivals to one server at load 0.5: the mean wait is load / (2 (1 - load)) services."""
    arrivals = np.random.default_rng(0).exponential(2.0, 1500).cumsum()
    one = Fleet.named("1x1xT4")
    schedule = simulated([rigid(f"{i}", 1.0, 1, t) for i, t in enumerate(arrivals.tolist())], fifo, one)
    waits, free = [], 0.0
    for arrival in arrivals:  # Lindley's recursion
        waits.append(max(free - arrival, 0.0))
        free = max(free, arrival) + 1.0
    waited = [outcome.start_s - outcome.job.arrival_s for outcome in schedule.outcomes]
    assert waited == pytest.approx(waits, abs=1e-6)
    assert np.mean(waited) == pytest.approx(0.5, rel=0.2)


@given(many_jobs())
def test_whatever_comes_every_job_ends_once_on_devices_that_are_there(jobs: list[Job]) -> None:
    rigid_only = [job for job in jobs if job.duration_s] or [rigid("a", 1)]
    schedule = simulated(rigid_only, las, settings=ROUNDS)
    audit(schedule, rigid_only)
    for outcome in schedule.outcomes:  # nothing but work and starts
        held = sum(span.end_s - span.start_s for span in outcome.spans)
        starts = sum(min(span.end_s - span.start_s, 30.0) for span in outcome.spans)
        assert held == pytest.approx(outcome.job.duration_s + starts)
        assert outcome.restarts == len(outcome.spans) - 1


@given(many_jobs(), st.sampled_from([FREE, ROUNDS]))
def test_the_same_jobs_give_the_same_schedule(jobs: list[Job], settings: ClusterSettings) -> None:
    jobs = [replace(job, duration_s=60.0, steps=0.0, adapts=frozenset()) for job in jobs]
    assert simulated(jobs, las, settings=settings).outcomes == simulated(jobs, las, settings=settings).outcomes


def test_equal_arrivals_start_in_the_order_of_the_trace() -> None:
    schedule = simulated([rigid(name, 10, 8) for name in "cab"], fifo)
    assert ends(schedule) == {"c": 10, "a": 20, "b": 30}


def test_rounds_delay_starts_to_their_boundary_and_ends_not_at_all() -> None:
    schedule = simulated(
        [rigid("a", 45, 1, 61.0), rigid("b", 10, 1, 500.0)], fifo, settings=ClusterSettings(round_s=60, restart_s=0)
    )
    assert ends(schedule) == {"a": 165, "b": 550}
    assert [moment for moment, _ in schedule.active] == [120, 540]  # an empty cluster decides nothing


def test_epochs_of_a_profile_add_up(tmp_path: Path) -> None:
    toy = profile(tmp_path)
    job = Job(name="a", model="toy", devices=2, batch=32, epochs=3)
    run = ProfiledRun(job, toy, SMALL, adapts_batch=False, beliefs=MeasuredEstimate(toy))
    schedule = simulate([job], SMALL, fifo, lambda _: run, FREE)
    assert schedule.outcomes[0].end_s == pytest.approx(300 * (0.02 + 0.016 + 0.002))
    assert schedule.outcomes[0].spans[0].batch == 32


# --- nodes that go ---


@pytest.mark.parametrize("round_s", [25.0, 60.0, 0.1])
def test_jobs_that_arrive_a_rounding_error_after_a_round_are_served_at_the_next_one(round_s: float) -> None:
    later_s = [math.nextafter(round_s * boundary, math.inf) for boundary in (3, 7, 1234)]
    jobs = [rigid(f"{n}", round_s, 1, later_s[n]) for n in range(3)]
    outcomes = simulated(jobs, fifo, settings=ClusterSettings(round_s=round_s, restart_s=0)).outcomes
    assert [outcome.start_s for outcome in outcomes] == pytest.approx([round_s * boundary for boundary in (4, 8, 1235)])


def test_a_short_outage_between_two_rounds_is_not_missed() -> None:
    fleet = Fleet.named("2x4xT4", [Outage(0, 70.0, 80.0)])
    settings = ClusterSettings(round_s=60.0, restart_s=0.0, checkpoint_s=1.0)
    schedule = simulated([rigid("a", 100, 4), rigid("b", 100, 4)], fifo, fleet, settings)
    audit(schedule, [outcome.job for outcome in schedule.outcomes])
    assert ends(schedule) == {"a": pytest.approx(150, abs=1), "b": 100}


@given(many_jobs(devices=4), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 900), st.integers(1, 500)), max_size=4))
def test_outages_lose_no_job(jobs: list[Job], away: list[tuple[int, int, int]]) -> None:
    fleet = Fleet.named("2x4xT4", [Outage(node, start, start + length) for node, start, length in away])
    jobs = [replace(job, duration_s=60.0, steps=0.0, adapts=frozenset()) for job in jobs]
    for settings in (FREE, ROUNDS):
        audit(simulated(jobs, fifo, fleet, settings), jobs)


# --- rounds that are passed without asking the policy ---


def asked_anew(policy: Policy) -> Policy:
    """The policy, which promises nothing."""
    return lambda state: replace(policy(state), holds_until_s=-np.inf)


OUTAGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5000), st.integers(1, 4000)), max_size=2)
PROMISES = [fifo, partial(las, thresholds_s=(600.0, 7200.0)), edf, srtf]


@at_most(max_examples=25)
@given(many_jobs(most=4, devices=4), st.sampled_from(PROMISES), st.sampled_from([7.3, 60.0]), st.floats(0, 100), OUTAGES)
def test_a_promise_changes_no_digit(
    jobs: list[Job], policy: Policy, round_s: float, restart_s: float, away: list[tuple[int, int, int]]
) -> None:
    fleet = Fleet.named("2x4xT4", [Outage(node, start, start + length) for node, start, length in away])
    jobs = [replace(job, duration_s=job.duration_s * 1.7, steps=job.steps * 1.7, arrival_s=job.arrival_s * 31) for job in jobs]
    settings = ClusterSettings(round_s=round_s, restart_s=restart_s)
    passed = simulated(jobs, policy, fleet, settings)
    every = simulated(jobs, asked_anew(policy), fleet, settings)
    assert (passed.outcomes, passed.active, passed.notes) == (every.outcomes, every.active, every.notes)


@pytest.mark.parametrize("policy", PROMISES, ids=["fifo", "las", "edf", "srtf"])
def test_a_promise_ends_where_the_order_of_jobs_changes(policy: Policy) -> None:
    """Under las the first falls to the second queue, and the next takes its devices; under srtf a shorter one waits."""
    jobs = [rigid("long", 9000, 8), rigid("next", 3000, 8, 70.0), rigid("short", 500, 4, 130.0), rigid("due", 900, 4, 4000.0)]
    passed, every = (simulated(jobs, each, settings=ROUNDS) for each in (policy, asked_anew(policy)))
    assert passed.outcomes == every.outcomes and passed.active == every.active
    assert len(passed.decision_s) < len(every.decision_s)


def test_a_long_job_alone_costs_a_few_decisions() -> None:
    schedule = simulated([rigid("a", 1e6), rigid("b", 10, 1, 2e6)], fifo, settings=ROUNDS)
    assert len(schedule.decision_s) < 10 and len(schedule.active) == 16669
    assert metrics(schedule).decisions == 16669


# --- what cannot work ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ClusterSettings(round_s=1e-9), "a `round` of 1.00 ns; give at least 0.01s, or 0 to decide at every arrival"),
        (
            ClusterSettings(restart_s=86_400_000.0),
            "a `restart` of 2.74 years takes 1,000 rounds of 60.0 s or more; give a shorter",
        ),
        (ClusterSettings(restart_by_model={"toy": 1e6}), "a `restart` of 11 d 14 h takes 1,000 rounds"),
    ],
)
def test_times_that_cannot_work_are_named(settings: ClusterSettings, said: str) -> None:
    with pytest.raises(UserError, match=said):
        simulated([rigid("a", 1)], fifo, settings=settings)
    simulated([rigid("a", 1)], fifo, settings=ClusterSettings(round_s=0.0, restart_s=86_400_000.0))


def test_jobs_that_no_cluster_holds_are_refused() -> None:
    with pytest.raises(UserError, match=r"'a' asks for 9 devices; the cluster has 8"):
        simulated([rigid("a", 1, 9)], fifo)
    with pytest.raises(UserError, match="'a' runs on V100"):
        simulated([rigid("a", 1, 1, device_types=("V100",))], fifo)
    with pytest.raises(UserError, match="two jobs are named 'a'"):
        simulated([rigid("a", 1), rigid("a", 1)], fifo)


@pytest.mark.parametrize("round_s", [0.0, 60.0])
def test_a_policy_that_never_starts_a_job_is_stopped(round_s: float) -> None:
    with pytest.raises(UserError, match=r"never starts job a; give it nodes"):
        simulated([rigid("a", 1)], one_each, settings=ClusterSettings(round_s=round_s))


def swapping(state: State) -> Decision:
    """Whoever holds devices loses them to the next."""
    decision = one_each(state)
    decision.devices[(int(state.devices.argmax()) + 1) % len(state.jobs) if state.devices.any() else 0] = 8
    return replace(decision, wake_s=state.time_s + 20.0)


@pytest.mark.parametrize("round_s", [0.0, 20.0])
def test_two_jobs_that_swap_for_ever_are_an_error(round_s: float) -> None:
    jobs = [rigid("a", 100, 8), rigid("b", 100, 8)]
    with pytest.raises(UserError, match=r"1,000 times in a row without any work between, on 2 jobs \(a, b\)"):
        simulated(jobs, swapping, settings=ClusterSettings(round_s=round_s, restart_s=30.0))
    audit(
        simulated(jobs, swapping, settings=ClusterSettings(round_s=round_s, restart_s=10.0)), jobs
    )  # each turn works for 10 s


def test_a_policy_that_wakes_without_an_end_is_an_error() -> None:
    def restless(state: State) -> Decision:
        return replace(fifo(state), wake_s=state.time_s)

    with pytest.raises(UserError, match="without any work between, on job a"):
        simulated([rigid("a", 1)], restless)


def test_a_wish_to_wake_ends_with_the_last_job() -> None:
    def restless(state: State) -> Decision:
        return replace(fifo(state), wake_s=state.time_s + 5.0)

    schedule = simulated([rigid("a", 1), rigid("b", 1, 1, 100.0)], restless)
    assert [moment for moment, _ in schedule.active] == [0, 100]


def test_waiting_for_a_repair_or_an_arrival_is_no_error() -> None:
    days = 60.0 * MOST_IDLE * 2
    fleet = Fleet.named("2x4xT4", [Outage(0, 0.0, days)])
    schedule = simulated([rigid("a", 1, 8), rigid("b", 1, 1, 10.0)], fifo, fleet, ROUNDS)
    assert schedule.outcomes[0].start_s == days


# --- jobs that a policy sends away ---


def test_a_job_that_is_removed_leaves_with_its_reason() -> None:
    def only_short(state: State) -> Decision:
        gone = {index: f"{job.duration_s:g} s" for index, job in enumerate(state.jobs) if job.duration_s > 50}
        return replace(fifo(state), removed=gone)

    jobs = [rigid("a", 40, 8), rigid("b", 60, 8), rigid("c", 40, 8), rigid("d", 70, 8, 1000.0)]
    schedule = simulated(jobs, only_short)
    audit(schedule, jobs, removes=True)
    a, b, c, d = schedule.outcomes
    assert (a.end_s, c.end_s) == (40, 80) and (b.removed, d.removed) == ("60 s", "70 s")
    assert np.isnan(b.end_s) and (b.removed_s, d.removed_s) == (0, 1000) and not b.met and not a.removed


def test_policies_see_the_curves_that_jobs_report(tmp_path: Path) -> None:
    toy, seen = profile(tmp_path), []

    def looks(state: State) -> Decision:
        seen.append([curve.tolist() for curve in state.curves])
        return fifo(state)

    job = Job(name="a", model="toy", devices=2, batch=32, epochs=3)
    simulate([job], SMALL, looks, lambda j: ProfiledRun(j, toy, SMALL, adapts_batch=False, beliefs=MeasuredEstimate(toy)), FREE)
    assert seen == [[[]], [[0.5]], [[0.5, 0.6]]]
    simulated([rigid("b", 1)], looks)
    assert seen[-1] == []


def test_progress_tells_the_moment_and_the_jobs_that_ended() -> None:
    told: list[tuple[float, int]] = []
    jobs: Sequence[Job] = [rigid("a", 10, 8), rigid("b", 10, 8)]
    simulate(jobs, SMALL, fifo, runs(SMALL), FREE, lambda time_s, ended: told.append((time_s, ended)))
    assert told == [(0, 0), (10, 1)]


@pytest.mark.parametrize("round_s", [0.0, 60.0])
def test_a_simulation_starts_from_jobs_that_run(round_s: float) -> None:
    """At 1,000 s one job has run 600 of its 900 s, one waits, and one comes later."""
    jobs = [rigid("runs", 900, 6, 300.0), rigid("waits", 100, 8, 500.0), rigid("comes", 50, 2, 1100.0)]
    schedule = simulate(
        jobs,
        SMALL,
        fifo,
        lambda job: DurationRun(job, left_s=300.0 if job.name == "runs" else None),
        ClusterSettings(round_s=round_s, restart_s=0),
        start_s=1000.0,
        running={"runs": RunningJob(((0, 4), (1, 2)), 600.0)},
    )
    starts = [outcome.start_s for outcome in schedule.outcomes]
    assert starts == ([400, 1320, 1440] if round_s else [400, 1300, 1400])
    assert ends(schedule)["runs"] == 1300 and schedule.outcomes[0].device_s == 5400 and schedule.outcomes[0].restarts == 0


@pytest.mark.parametrize(
    ("running", "says"),
    [
        ({"b": RunningJob(((0, 1),))}, "has not arrived"),
        ({"c": RunningJob(((0, 1),))}, "has not arrived"),
        ({"a": RunningJob(())}, "on nodes"),
        ({"a": RunningJob(((2, 1),))}, "nodes are 0 to 1"),
        ({"a": RunningJob(((0, 5),))}, "needs more devices of node 0"),
    ],
)
def test_a_job_that_cannot_run_there_is_refused(running: dict[str, RunningJob], says: str) -> None:
    with pytest.raises(UserError, match=says):
        simulate([rigid("a", 9), rigid("b", 9, 1, 20.0)], SMALL, fifo, DurationRun, FREE, start_s=10.0, running=running)
