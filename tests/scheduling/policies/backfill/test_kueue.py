"""Kueue's policy: quotas, cohorts, strategies and preemption as its documentation and its issues describe them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.backfill.kueue import kueue, queue_of
from paceline.scheduling.queues.kueue_settings import ClusterQueue, KueueSettings, Quota
from paceline.scheduling.simulate.schedule import ClusterSchedule
from scheduling_toys import rigid, simulated, state

TYPE = "T4"


def queue(nominal: int, borrowing: int | None = None, lending: int | None = None, **also: Any) -> ClusterQueue:
    quota = Quota(nominal=nominal, borrowing_limit=borrowing, lending_limit=lending)
    return ClusterQueue(**{"cohort": "ab", "quotas": {TYPE: quota}, **also})


def run(jobs: list[Job], devices: int = 21, fair: bool = False, **queues: ClusterQueue) -> ClusterSchedule:
    settings = KueueSettings(queues=queues, fair_sharing=fair)
    return simulated(jobs, partial(kueue, settings=settings), Fleet.named(f"1x{devices}x{TYPE}"))


def starts(schedule: ClusterSchedule) -> dict[str, float]:
    return {outcome.job.name: outcome.start_s for outcome in schedule.outcomes}


def test_the_borrowing_example_of_the_documentation() -> None:
    """Queues of 9 and 12: a may use 21 while b is idle, or 10 with a borrowing limit of 1. b comes before a that borrows."""
    ones = [rigid(f"a{n}", 100, 1, queue="a") for n in range(21)]
    assert sum(start == 0 for start in starts(run(ones, a=queue(9), b=queue(12))).values()) == 21
    assert sum(start == 0 for start in starts(run(ones, a=queue(9, borrowing=1), b=queue(12))).values()) == 10
    assert sum(start == 0 for start in starts(run(ones, a=queue(9), b=queue(12, lending=4))).values()) == 13
    used = [rigid("a0", 100, 9, queue="a"), rigid("b0", 100, 6, queue="b")]
    both = starts(run([*used, *(rigid(f"{name}1", 50, 6, 1.0, queue=name) for name in "ab")], a=queue(9), b=queue(12)))
    assert both["b1"] == 1 and both["a1"] == 51


def test_best_effort_lets_small_jobs_pass_and_strict_does_not() -> None:
    """kueue#534: of 100 devices 60 are used; a job of 50 waits behind it, and one of 40 passes only under BestEffortFIFO."""
    jobs = [rigid("j1", 7200, 30), rigid("j2", 7200, 30), rigid("j3", 3600, 50, 60.0), rigid("j4", 7200, 40, 120.0)]
    assert starts(run(jobs, 100, a=queue(100)))["j4"] == 120
    assert starts(run(jobs, 100, a=queue(100, strategy="StrictFIFO"))) == {"j1": 0, "j2": 0, "j3": 7200, "j4": 7200}


@pytest.mark.parametrize(
    ("within", "priority", "start"),
    [("Never", 9, 1000), ("LowerPriority", 9, 10), ("LowerPriority", 0, 1000), ("LowerOrNewerEqualPriority", 9, 10)],
)
def test_preemption_within_a_queue(within: str, priority: int, start: float) -> None:
    schedule = run([rigid("low", 1000, 4), rigid("high", 50, 4, 10.0, priority=priority)], 4, a=queue(4, within=within))
    assert starts(schedule)["high"] == start


def test_an_older_job_of_equal_priority_takes_from_a_newer_one() -> None:
    jobs = [rigid("first", 10, 2), rigid("old", 50, 4, 1.0), rigid("new", 1000, 2, 2.0)]
    assert starts(run(jobs, 4, a=queue(4, within="LowerPriority")))["old"] == 1002
    assert starts(run(jobs, 4, a=queue(4, within="LowerOrNewerEqualPriority")))["old"] == 10


@pytest.mark.parametrize(
    ("reclaim", "low", "start"), [("Never", 0, 1000), ("Any", 99, 10), ("LowerPriority", 99, 1000), ("LowerPriority", -1, 10)]
)
def test_a_queue_reclaims_what_others_borrow(reclaim: str, low: int, start: float) -> None:
    """b borrows all 8 in jobs of 4; a needs 4 of its own, and the latest job of b leaves."""
    jobs = [rigid(f"b{n}", 1000, 4, float(n), queue="b", priority=low) for n in range(2)] + [rigid("a", 50, 4, 10.0, queue="a")]
    schedule = run(jobs, 8, a=queue(4, reclaim=reclaim), b=queue(4))
    assert starts(schedule)["a"] == start
    assert [outcome.restarts for outcome in schedule.outcomes] == ([0, 1, 0] if start == 10 else [0, 0, 0])


def test_a_borrower_takes_nothing_from_owners() -> None:
    """a wants 8, of which 4 would be borrowed, while b uses its own 4."""
    jobs = [rigid("b", 1000, 4, queue="b"), rigid("a", 50, 8, 10.0, queue="a", priority=9)]
    rules: dict[str, Any] = {"reclaim": "Any", "within": "LowerPriority"}
    assert starts(run(jobs, 8, a=queue(4, borrow_within=True, **rules), b=queue(4)))["a"] == 1000
    lent = [rigid("b", 1000, 8, queue="b"), rigid("a", 50, 8, 10.0, queue="a", priority=9)]
    assert starts(run(lent, 8, a=queue(4, borrow_within=True, **rules), b=queue(4)))["a"] == 10
    assert starts(run(lent, 8, a=queue(4, borrow_within=True, borrow_threshold=-1, **rules), b=queue(4)))["a"] == 1000
    assert starts(run(lent, 8, a=queue(4, **rules), b=queue(4)))["a"] == 1000


def test_fair_sharing_divides_what_no_queue_owns() -> None:
    """c owns the 8 devices and uses none. a and b borrow: without fair sharing a keeps all, with it each gets half."""
    jobs = [rigid(f"a{n}", 1000, 1, queue="a") for n in range(8)] + [rigid(f"b{n}", 1000, 1, 10.0, queue="b") for n in range(8)]
    queues = {"a": queue(0), "b": queue(0, reclaim="Any"), "c": queue(8)}
    for fair, count in ((False, 0), (True, 4)):
        schedule = run(jobs, 8, fair, **queues)
        assert sum(start == 10 for name, start in starts(schedule).items() if name[0] == "b") == count


def test_devices_in_their_grace_belong_to_the_job_that_preempted() -> None:
    jobs = [rigid("low", 1000, 4, grace_s=30.0), rigid("high", 50, 4, 10.0, priority=9), rigid("other", 5, 2, 20.0)]
    schedule = run(jobs, 4, a=queue(4, within="LowerPriority"))
    assert starts(schedule) == {"low": 0, "high": 40, "other": 1050} and schedule.outcomes[0].restarts == 1


def test_a_job_finds_its_queue_or_is_refused() -> None:
    settings = KueueSettings(queues={"a": queue(4), "b": queue(4)}, local_queues={"team": "b"})
    assert [queue_of(rigid("j", 1, queue=name), settings) for name in ("a", "team")] == ["a", "b"]
    assert queue_of(rigid("j", 1, virtual_cluster="team"), settings) == "b"
    with pytest.raises(UserError, match="job 'j' is in queue 'c'"):
        queue_of(rigid("j", 1, queue="c"), settings)
    assert starts(simulated([rigid("j", 1, 2)], kueue, Fleet.named("1x4xT4"))) == {"j": 0}
    stopped = {"a": queue(4, stopped=True), "b": queue(4)}
    held = run([rigid("x", 1, queue="b"), rigid("y", 1, 1, 5.0, queue="b")], 8, **stopped)
    assert starts(held) == {"x": 0, "y": 5}


def test_what_a_preemption_leaves_free_is_given_at_once() -> None:
    """A job that its borrowing limit held back starts when the borrower leaves, not at the next event."""
    jobs = [rigid("a1", 1000, 6, queue="a"), rigid("a2", 1000, 2, 1.0, queue="a"), rigid("b1", 300, 4, 100.0, queue="b")]
    schedule = run(jobs, 8, a=queue(4, borrowing=2, reclaim="Any"), b=queue(4, reclaim="Any"))
    assert starts(schedule) == {"a1": 0, "a2": 100, "b1": 100}


def test_a_stopped_local_queue_admits_nothing() -> None:
    settings = KueueSettings(queues={"a": queue(4)}, local_queues={"one": "a", "two": "a"}, stopped=("ns/two",))
    jobs = [rigid("one", 50, 2, queue="one"), rigid("two", 50, 2, queue="two")]
    with pytest.raises(UserError, match="local queue two is stopped"):
        simulated(jobs, partial(kueue, settings=settings), Fleet.named(f"1x4x{TYPE}"))


@pytest.mark.parametrize("settings", [{"queues": {"a": queue(4, stopped=True, drains=True)}}, {"drained": ("ns/one",)}])
def test_a_queue_that_drains_takes_the_devices_of_its_jobs(settings: dict[str, Any]) -> None:
    """Kueue, concepts/cluster_queue: under HoldAndDrain admitted workloads are evicted."""
    fleet = Fleet.named(f"1x4x{TYPE}")
    stated = KueueSettings(**{"queues": {"a": queue(4)}, "local_queues": {"one": "a"}, **settings})
    job = state([rigid("j", 50, 2, queue="one")], fleet, devices=np.array([2]), type_index=np.array([0]))
    found = kueue(job, stated)
    assert found.devices.tolist() == [0] and "stopPolicy" in found.reasons[0]
