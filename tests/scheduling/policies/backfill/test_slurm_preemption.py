"""Preemption of Slurm: tables worked out by hand after its source, and whole schedules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.policies.backfill.slurm import slurm
from paceline.scheduling.policies.backfill.slurm_preemption import in_slurms_order
from paceline.scheduling.queues.slurm_settings import Qos, SlurmPartition, SlurmSettings
from scheduling_toys import rigid, simulated

EIGHT = Fleet.named("1x8xT4")


@dataclass
class Table:
    """Jobs on nodes of four devices, ``{"a": {0: 2}}``, and a job that asks for devices of one node, or of any nodes."""

    held: dict[str, dict[int, int]]
    asked: int
    any_nodes: bool = False

    def nodes(self, gone: Collection[str]) -> frozenset[int]:
        free: dict[int, int] = {}
        for job in gone:
            for node, count in self.held[job].items():
                free[node] = free.get(node, 0) + count
        if self.any_nodes:
            chosen: list[int] = []
            for node in sorted(free, key=lambda node: -free[node]):
                chosen.append(node)
                if sum(free[each] for each in chosen) >= self.asked:
                    return frozenset(chosen)
            return frozenset()
        return frozenset([node for node in sorted(free) if free[node] >= self.asked][:1])

    def nodes_of(self, job: str) -> frozenset[int]:
        return frozenset(self.held[job])


PAIRS = {"a": {0: 2}, "b": {1: 2}, "c": {1: 2}}
SMALL = {"a": {0: 1}, "b": {0: 1}, "c": {0: 1}, "d": {0: 3}}
SPREAD = {"a": {0: 1}, "b": {1: 4}, "c": {2: 4}}


@pytest.mark.parametrize(
    ("held", "asked", "any_nodes", "how", "chosen"),
    [
        # a, b, c leave: node 1 fits. c first: c, b leave, so a stays.
        (PAIRS, 4, False, {}, "bc"),
        # a, b leave: two free on node 0 and on node 1, but only two on one node; then c. Nothing suffices for five.
        (PAIRS, 5, False, {}, ""),
        # d, the last, goes first: d and one more suffice. Without a repetition the order is d, a; with one it is a, d.
        (SMALL, 4, False, {"reorder_count": 0}, "da"),
        (SMALL, 4, False, {}, "ad"),
        (SMALL, 4, False, {"strict_order": True}, "ad"),
        # a, b, c leave: c and b have the most free devices, and hold the job. a is on no chosen node.
        (SPREAD, 6, True, {"reorder_count": 0}, "cb"),
        # One candidate: there is nothing to reorder, and the whole job leaves for one device.
        ({"a": {0: 4}}, 1, False, {}, "a"),
        # a and b leave in the first pass; then b alone holds the job.
        ({"a": {0: 1}, "b": {0: 3}}, 3, False, {}, "b"),
    ],
)
def test_the_jobs_that_slurm_preempts(
    held: dict[str, dict[int, int]], asked: int, any_nodes: bool, how: dict[str, Any], chosen: str
) -> None:
    """``_run_now`` of select/cons_tres, step by step; the order of the result is that of its last pass."""
    found = in_slurms_order(list(held), Table(held, asked, any_nodes), **how)  # type: ignore[arg-type]
    assert "".join(found) == chosen  # type: ignore[arg-type]


def ran(jobs: list[Any], fleet: Fleet = EIGHT, **settings: Any) -> dict[str, tuple[float, ...]]:
    """Starts of each job, and its end or removal."""
    rules = {"preempt": "qos", "multifactor": False, **settings}
    schedule = simulated(jobs, partial(slurm, settings=SlurmSettings(**rules)), fleet)
    return {
        one.job.name: (*(span.start_s for span in one.spans), one.end_s if one.removed_s is None else -one.removed_s)
        for one in schedule.outcomes
    }


LOW, HIGH = rigid("low", 1000, 8, qos="low"), rigid("high", 100, 8, 50.0, qos="high")
FIRST = Qos(preempts=("low",))


@pytest.mark.parametrize(
    ("low", "settings", "low_ran", "high_ran"),
    [
        (Qos(), {}, (0, 171, 1121), (50, 150)),
        (Qos(grace_s=60), {}, (0, 231, 1121), (110, 210)),
        (Qos(grace_s=2000), {}, (0, 1000), (1000, 1100)),
        (Qos(preempt_mode="cancel"), {}, (0, -50), (50, 150)),
        (Qos(preempt_mode="cancel", grace_s=60), {}, (0, -110), (110, 210)),
        (Qos(preempt_mode="suspend"), {}, (0, 1000), (1000, 1100)),
        (Qos(), {"preempt_mode": "off"}, (0, 1000), (1000, 1100)),
        (Qos(), {"exempt_priority": 0}, (0, 1000), (1000, 1100)),
        (Qos(), {"exempt_priority": 1}, (0, 171, 1121), (50, 150)),
        (Qos(), {"exempt_s": 300}, (0, 421, 1121), (300, 400)),
        (Qos(exempt_s=200), {"exempt_s": 300}, (0, 321, 1121), (200, 300)),
        (Qos(exempt_s=0), {"exempt_s": 300, "preempt_mode": "cancel"}, (0, -50), (50, 150)),
    ],
)
def test_grace_exemption_and_mode_of_a_qos(
    low: Qos, settings: dict[str, Any], low_ran: tuple[float, ...], high_ran: tuple[float, ...]
) -> None:
    """A preempted job keeps its work and starts again after at least 121 s: 1,000 s of work in all."""
    assert ran([LOW, HIGH], qos={"low": low, "high": FIRST}, **settings) == {"low": low_ran, "high": high_ran}


def test_preemption_by_partitions_has_their_grace_and_mode() -> None:
    jobs = [rigid("low", 1000, 8, queue="low"), rigid("high", 100, 8, 50.0, queue="high")]
    for low, start_s in ((SlurmPartition(grace_s=30), 80), (SlurmPartition(preempt_mode="off"), 1000)):
        partitions = {"low": low, "high": SlurmPartition(tier=2)}
        assert ran(jobs, preempt="partition_prio", partitions=partitions)["high"][0] == start_s


def test_jobs_preempt_their_own_qos_only_within_it_and_by_priority() -> None:
    jobs = [rigid("low", 1000, 8), rigid("high", 100, 8, 50.0, priority=5), rigid("equal", 100, 8, 60.0)]
    assert ran(jobs)["high"][0] == 1000
    for how in ({"preempts_within": True}, {"qos": {"normal": Qos(preempts_within=True)}}):
        found = ran(jobs, **how)
        assert found["high"][0] == 50 and found["low"] == (0, 250, 1200) and found["equal"][0] == 150


def test_the_least_qos_then_the_fewest_nodes_or_the_youngest_goes_first() -> None:
    """Two nodes of four: b has the lower QOS, c started last, a is on both nodes."""
    fleet = Fleet.named("2x4xT4")
    qos = {"high": Qos(preempts=("low", "mid")), "low": Qos(priority=1), "mid": Qos(priority=2)}
    jobs = [
        rigid("b", 1000, 2, 0.0, qos="low"),
        rigid("a", 1000, 4, 1.0, qos="mid"),
        rigid("c", 1000, 2, 2.0, qos="mid"),
        rigid("high", 100, 2, 50.0, qos="high"),
    ]
    stopped = [name for name, spans in ran(jobs, fleet, qos=qos).items() if len(spans) > 2]
    assert stopped == ["b"]
    stopped = [name for name, spans in ran(jobs, fleet, qos=qos, youngest_first=True).items() if len(spans) > 2]
    assert stopped == ["c"]
    jobs = [rigid("wide", 1000, 6, 0.0, qos="low"), rigid("thin", 1000, 2, 1.0, qos="low"), jobs[3]]
    stopped = [name for name, spans in ran(jobs, fleet, qos=qos).items() if len(spans) > 2]
    assert stopped == ["thin"]
