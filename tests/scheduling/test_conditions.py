"""Conditions that owners state are met under every policy, whatever it decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.las import las
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings
from paceline.scheduling.state import Decision, State
from scheduling_toys import FREE, audit, ends, rigid, simulated

FOUR = Fleet.named("1x4xT4")
RACKS = Fleet.named("4x8xA100, 100Gb/s, leaf-nodes=2, oversubscription=2:1")


def spans(schedule: ClusterSchedule, name: str) -> list[tuple[float, float]]:
    (outcome,) = [outcome for outcome in schedule.outcomes if outcome.job.name == name]
    return [(span.start_s, span.end_s) for span in outcome.spans]


def newest(state: State) -> Decision:
    """Last in, first out: the newest job stops all others."""
    devices, left = np.zeros(len(state.jobs), np.int64), int(state.capacity.sum())
    for index in reversed(range(len(state.jobs))):
        devices[index] = state.requested[index] if state.requested[index] <= left else 0
        left -= int(devices[index])
    return Decision(devices=devices, type_index=np.where(devices > 0, 0, -1))


@pytest.mark.parametrize(
    ("condition", "first", "second"),
    [
        ({}, [(0, 10), (30, 120)], [(10, 30)]),
        ({"preemptible": False}, [(0, 100)], [(100, 120)]),
        ({"min_run_s": 60.0}, [(0, 60), (80, 120)], [(60, 80)]),
        ({"min_run_s": 5.0}, [(0, 10), (30, 120)], [(10, 30)]),
        ({"grace_s": 15.0}, [(0, 25), (45, 120)], [(25, 45)]),
        ({"grace_s": 1000.0}, [(0, 100)], [(100, 120)]),
        ({"limit_s": 3600.0}, [(0, 10), (30, 120)], [(10, 30)]),
    ],
    ids=str,
)
def test_a_condition_decides_when_a_job_may_lose_its_devices(
    condition: dict[str, float], first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    schedule = simulated([rigid("old", 100, 4, **condition), rigid("new", 20, 4, 10.0)], newest, FOUR)
    assert (spans(schedule, "old"), spans(schedule, "new")) == (first, second)


def test_in_rounds_too() -> None:
    for condition, start in (({"preemptible": False}, 120), ({"min_run_s": 45.0}, 60), ({"grace_s": 20.0}, 60)):
        jobs = [rigid("old", 100, 4, **condition), rigid("new", 20, 4, 10.0)]
        schedule = simulated(jobs, newest, FOUR, ClusterSettings(round_s=30.0, restart_s=0.0))
        assert spans(schedule, "new")[0][0] == start, condition


def test_a_job_is_ended_at_its_limit() -> None:
    schedule = simulated([rigid("long", 10_000, 4, limit_s=600.0), rigid("next", 10, 4)], fifo, FOUR)
    long, following = schedule.outcomes
    assert long.removed.startswith("it reached its limit of 10") and math.isnan(long.end_s)
    assert long.spans[-1].end_s == 690.0 and following.end_s == 700.0, "Slurm ends it within 90 s of its limit"


def test_all_devices_are_in_the_rack_that_is_required() -> None:
    """Two nodes are free in two racks at an hour; the job starts when one rack is free, at two hours."""
    running = [rigid(f"x{n}", 3600.0 * (2 if n % 2 == 0 else 1), 8) for n in range(4)]
    for topology, start in (("", 3600.0), ("rack", 7200.0)):
        schedule = simulated([*running, rigid("big", 3600, 16, 60.0, topology=topology)], fifo, RACKS)
        (span,) = schedule.outcomes[-1].spans
        assert span.start_s == start and len({node // 2 for node, _ in span.placement}) == (1 if topology else 2)


def test_a_stream_of_small_jobs_does_not_keep_a_rack_from_a_job_that_needs_it() -> None:
    stream = [rigid(f"s{n}", 1000.0, 4, 125.0 * n) for n in range(64)]  # 32 devices, all used
    schedule = simulated([*stream, rigid("big", 1000, 16, 1.0, topology="rack")], las, RACKS)
    assert schedule.outcomes[-1].start_s < 4000.0


@pytest.mark.parametrize("name", ["fifo", "las", "easy", "slurm", "kueue"])
def test_tasks_of_an_array_run_as_many_at_once_as_it_allows(name: str) -> None:
    tasks = [rigid(f"t{at}", 100, array="7", array_limit=2) for at in range(4)]
    schedule = simulated([*tasks, rigid("other", 100)], POLICIES[name].published)
    assert ends(schedule) == {"t0": 100, "t1": 100, "t2": 200, "t3": 200, "other": 100}


def test_fractions_share_a_device() -> None:
    one = Fleet.named("1x1xT4")
    jobs = [rigid(name, 3600, share=share) for name, share in (("a", 0.46), ("b", 0.5), ("c", 0.46))]
    schedule = simulated(jobs, fifo, one)
    assert ends(schedule) == {"a": 3600, "b": 3600, "c": 7200}
    assert schedule.outcomes[0].device_s == pytest.approx(0.46 * 3600)


def test_a_whole_device_is_not_starved_by_fractions() -> None:
    jobs = [
        rigid("f0", 100, share=0.5),
        rigid("whole", 50, 1, 10.0),
        *(rigid(f"f{n}", 100, 1, 50.0 * n, share=0.5) for n in range(1, 9)),
    ]
    assert simulated(jobs, fifo, Fleet.named("1x1xT4")).outcomes[1].start_s == 100.0


@st.composite
def conditioned(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for index in range(draw(st.integers(2, 9))):
        devices = draw(st.sampled_from([1, 1, 2, 4, 8, 16]))
        share = draw(st.sampled_from([1.0, 0.3, 0.46])) if devices == 1 else 1.0
        jobs.append(
            rigid(
                f"j{index}",
                float(draw(st.integers(1, 2000))),
                devices,
                float(draw(st.integers(0, 600))),
                preemptible=draw(st.booleans()),
                min_run_s=float(draw(st.sampled_from([0, 300]))),
                grace_s=float(draw(st.sampled_from([0, 0, 45]))),
                topology=draw(st.sampled_from(["", "rack", "node"] if devices <= 8 else ["", "rack"])),
                share=share,
            )
        )
    return jobs


EVERY = {"newest": newest, **{name: entry.decide for name, entry in POLICIES.items() if name not in ("cost", "deadline")}}
"""Policies that need neither prices nor deadlines."""


@pytest.mark.everyday("newest", "las", "paceline", "priority", "kueue", others="long")
@pytest.mark.parametrize("name", EVERY)
@given(jobs=conditioned(), round_s=st.sampled_from([0.0, 60.0]))
@settings(max_examples=8, deadline=None)
def test_any_schedule_meets_the_conditions(name: str, jobs: Sequence[Job], round_s: float) -> None:
    policy = EVERY[name]
    schedule = simulated(jobs, policy, RACKS, replace(FREE, round_s=round_s))
    whole = [outcome for outcome in schedule.outcomes if outcome.job.share == 1]
    audit(replace(schedule, outcomes=tuple(whole)), [outcome.job for outcome in whole])
    moments = sorted({span.start_s for outcome in schedule.outcomes for span in outcome.spans})
    for moment in moments:
        used = np.zeros(4)
        for outcome in schedule.outcomes:
            for span in outcome.spans:
                if span.start_s <= moment < span.end_s:
                    for node, count in span.placement:
                        used[node] += count * outcome.job.share
        assert (used <= 8 + 1e-9).all()
    for outcome in schedule.outcomes:
        job = outcome.job
        assert not math.isnan(outcome.end_s)
        for span in outcome.spans:
            assert job.topology != "node" or len(span.placement) == 1
            assert job.topology != "rack" or len({node // 2 for node, _ in span.placement}) == 1
            if span is not outcome.spans[-1]:
                assert job.preemptible and job.share == 1
                assert span.end_s - span.start_s >= max(job.min_run_s, job.grace_s) - 1e-6
