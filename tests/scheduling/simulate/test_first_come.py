"""``simulate.first_come``: a job that later ones overtake is unfair, however large it is."""

from __future__ import annotations

import math

import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.first_come import first_come_s
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome, Span

EIGHT = Fleet.named("1x8xT4")


def outcome(name: str, arrival_s: float, devices: int, start_s: float, end_s: float, elastic: bool = False) -> JobOutcome:
    job = Job(name=name, arrival_s=arrival_s, devices=devices, duration_s=1.0, adapts=frozenset({"devices"} if elastic else ()))
    return JobOutcome(job, end_s, spans=[Span(start_s, end_s, "T4", ((0, devices),))])


def test_work_that_was_there_before_comes_first_on_all_devices() -> None:
    """At 50 s, a still holds 8 devices for 50 s. b came before c, and holds 4 for 100 s: half of that time on 8."""
    every = (
        outcome("a", 0, 8, 0, 100),
        outcome("b", 50, 4, 300, 400),
        outcome("c", 50, 8, 100, 300),
        outcome("elastic", 60, 8, 400, 500, elastic=True),
    )
    schedule = ClusterSchedule(fleet=EIGHT, outcomes=every, decision_s=(), active=())
    assert first_come_s(schedule).tolist() == pytest.approx([100, 50 + 100, 50 + 50 + 200, math.inf])


def test_a_starving_job_is_unfair_though_its_equal_share_is_small() -> None:
    """Half the devices are asked for every 50 s for 100 s, and all of them once."""
    small = [Job(name=f"small {n}", arrival_s=50.0 * n, devices=4, duration_s=100.0) for n in range(30)]
    jobs = (*small[:2], Job(name="large", arrival_s=60.0, devices=8, duration_s=100.0), *small[2:])
    at_once = Scenario(jobs=jobs, fleet=EIGHT, settings=ClusterSettings(round_s=0.0, restart_s=0.0))
    kueue, fifo = (at_once.run(policy).metrics for policy in ("kueue", "fifo"))
    assert kueue.worst_wait.name == "large" and kueue.worst_fairness > 8 and kueue.unfair_share > 0
    assert fifo.worst_fairness < 2
