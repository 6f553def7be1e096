"""The simulator's policies on live states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from live_jobs import script, training
from paceline.scheduling.executors.executor import NodeDevices
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.journal import LiveRow, Report
from paceline.scheduling.live.nodes import LiveNodes
from paceline.scheduling.live.policy import LiveAdapter, core_job, even, restarts, with_grace
from paceline.scheduling.live.runner import Snapshot
from paceline.scheduling.policies.backfill.easy import priority
from paceline.scheduling.policies.deadline import deadline
from paceline.scheduling.policies.goodput import goodput
from paceline.scheduling.policies.max_min import max_min
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.queues.slurm_settings import Qos, SlurmPartition, SlurmSettings
from paceline.scheduling.state import Decision, Policy, State

BASE = Path("/data")
NODES = (("h0", 2), ("h1", 2))
TEN = (Report({"h0": 1}, 10.0),)


def row(name: str, arrival_s: float = 100.0, **more: object) -> LiveRow:
    return LiveRow(launch=training(BASE, name), arrival_s=arrival_s, **more)  # type: ignore[arg-type]


def state(*rows: LiveRow, placed: dict[str, NodeDevices] | None = None, nodes: tuple[tuple[str, int], ...] = NODES) -> Snapshot:
    return Snapshot(now_s=200.0, rows=rows, placed=placed or {}, nodes=nodes)


def test_an_elastic_job_asks_for_the_least_and_a_rigid_one_for_what_it_has() -> None:
    job = core_job(row("a"), 90.0)
    assert (job.arrival_s, job.devices, job.max_devices, job.adapts) == (10.0, 1, 4, {"devices"})
    rigid = LiveRow(launch=script(BASE, "true", min_devices=3, max_devices=3), arrival_s=80.0)
    assert core_job(rigid, 90.0).devices == 3 and not core_job(rigid, 90.0).adapts


def test_fifo_keeps_who_runs_and_places_the_next() -> None:
    rigid = LiveRow(launch=script(BASE, "true", "big", min_devices=4, max_devices=4), arrival_s=150.0)
    decide = LiveAdapter(fifo, 10.0)
    placed: dict[str, NodeDevices] = {"b": {"h1": 1}}
    decision = decide(state(row("a"), row("b", 110.0), rigid, placed=placed))
    assert decision.placements == {"a": {"h1": 1}, "b": {"h1": 1}}


def test_goodput_shares_out_and_a_lost_node_is_left() -> None:
    decide = LiveAdapter(goodput, 10.0)
    first = decide(state(row("a", reports=TEN), row("b", reports=TEN)))
    assert sorted(sum(p.values()) for p in first.placements.values()) == [2, 2]
    aged = tuple(replace(row(name, reports=TEN), starts=1) for name in ("a", "b"))
    second = decide(state(*aged, placed=first.placements, nodes=(("h0", 2),)))
    assert {node for placement in second.placements.values() for node in placement} == {"h0"}
    assert sum(sum(p.values()) for p in second.placements.values()) == 2


def test_who_ran_on_a_node_that_died_is_placed_anew() -> None:
    decide = LiveAdapter(fifo, 10.0)
    decide(state(row("a")))
    decision = decide(state(row("a"), placed={"a": {"h1": 1}}, nodes=(("h0", 2),)))
    assert decision.placements == {"a": {"h0": 1}}


def test_nodes_of_several_sizes_are_filled_as_far_as_they_go() -> None:
    four = LiveRow(launch=script(BASE, "true", "four", min_devices=4, max_devices=4), arrival_s=100.0)
    decision = LiveAdapter(fifo, 10.0)(state(row("a"), four, nodes=(("h0", 2), ("h1", 4))))
    assert decision.placements == {"a": {"h0": 1}, "four": {"h1": 4}}


@pytest.mark.parametrize("policy", [fifo, goodput, max_min, deadline])
def test_a_runner_that_begins_after_a_node_died_goes_on(policy: Policy) -> None:
    """The first look of a new runner: a job is still placed on a node that is no longer there."""
    job = script(BASE, "true", "a", duration_s=100.0)
    lost = LiveRow(launch=job, arrival_s=100.0, ran_on={"h1": 50.0}, run_s=50.0, attained_s=50.0)
    live = state(lost, placed={"a": {"h1": 1}}, nodes=(("h0", 2),))
    assert LiveAdapter(policy, 10.0)(live).placements == {"a": {"h0": 1}}
    assert LiveAdapter(policy, 10.0)(replace(live, nodes=())).placements == {}


def test_seconds_on_each_type_are_told_apart_after_a_move() -> None:
    seen = []

    def looks(given: State) -> Decision:
        seen.append(given.run_s.tolist())
        return fifo(given)

    nodes, there = LiveNodes.named(["a*=A100", "t*=T4"]), (("a0", 2), ("t0", 2))
    moved = row("a", ran_on={"a0": 1000.0, "t0": 20.0}, run_s=1020.0)
    LiveAdapter(looks, 10.0, nodes)(state(moved, placed={"a": {"t0": 1}}, nodes=there))
    assert seen == [[[1000.0, 20.0]]]


def test_two_types_are_told_apart_and_a_job_stays_on_its_own() -> None:
    nodes = LiveNodes.named(["a*=A100", "t*=T4"])
    there = (("a0", 2), ("t0", 2), ("t1", 2))
    bound = LiveRow(launch=script(BASE, "true", "bound", device_types=("T4",), min_devices=3, max_devices=3), arrival_s=100.0)
    decide = LiveAdapter(max_min, 10.0, nodes)
    first = decide(state(bound, row("free"), nodes=there))
    assert sum(first.placements["bound"].values()) == 3 and set(first.placements["bound"]) == {"t0", "t1"}
    again = decide(state(bound, placed=dict(first.placements), nodes=there))
    assert again.placements["bound"] == first.placements["bound"]


def test_the_state_knows_what_an_owner_stated() -> None:
    job = training(BASE, "a", weight=3.0, owner="ann", virtual_cluster="vc", deadline_s=50.0, model="lenet5")
    core = core_job(LiveRow(launch=job, arrival_s=100.0), 90.0)
    assert (core.weight, core.owner, core.virtual_cluster, core.deadline_s) == (3.0, "ann", "vc", 60.0)
    assert (core.batch, core.model) == (64, "lenet5")


def test_a_job_without_time_for_its_work_is_turned_away_and_an_admitted_one_stays_so() -> None:
    def lasting(name: str, deadline_s: float, run_s: float = 0.0) -> LiveRow:
        job = script(BASE, "true", name, duration_s=100.0, deadline_s=deadline_s)
        return LiveRow(launch=job, arrival_s=100.0, run_s=run_s)

    decide = LiveAdapter(deadline, 10.0, restart_s=1.0)
    live = Snapshot(now_s=100.0, rows=[lasting("tight", 50.0), lasting("fits", 400.0)], placed={}, nodes=(("h0", 1),))
    first = decide(live)
    assert "tight" in first.removed and first.placements == {"fits": {"h0": 1}}
    late = [lasting("fits", 400.0, run_s=1.0)]
    live = Snapshot(now_s=450.0, rows=late, placed=dict(first.placements), nodes=(("h0", 1),), memory=first.memory)
    assert not decide(live).removed, "it was admitted"
    assert decide(replace(live, memory=None)).removed


def test_a_start_costs_what_it_cost_before() -> None:
    rows = [row("a", restart_s=4.0), row("b")]
    assert restarts(state(*rows), 30.0).tolist() == [4.0, 4.0]
    assert restarts(Snapshot(now_s=0.0, rows=[row("b")], placed={}, nodes=NODES, past=rows[:1]), 30.0).tolist() == [4.0]
    assert restarts(state(row("b")), 30.0).tolist() == [30.0]


def test_even_gives_all_and_moves_nobody_without_need() -> None:
    decision = even(state(row("a")))
    assert decision.placements == {"a": {"h0": 2, "h1": 2}}
    decision = even(state(row("a"), row("b"), placed={"b": {"h1": 2}}))
    assert decision.placements == {"a": {"h0": 2}, "b": {"h1": 2}}
    many = even(state(*(row(f"j{n}") for n in range(6))))
    assert list(many.placements) == ["j0", "j1", "j2", "j3"]


@pytest.mark.parametrize(
    ("condition", "since", "placed"),
    [
        ({}, 150.0, {"high": {"h0": 2}}),
        ({"preemptible": False}, 150.0, {"low": {"h0": 2}}),
        ({"min_run_s": 60.0}, 150.0, {"low": {"h0": 2}}),
        ({"min_run_s": 60.0}, 130.0, {"high": {"h0": 2}}),
    ],
    ids=str,
)
def test_a_live_job_keeps_its_devices_while_its_owner_says_so(
    condition: dict[str, float], since: float, placed: dict[str, NodeDevices]
) -> None:
    low = script(BASE, "true", "low", min_devices=2, max_devices=2, duration_s=900.0, **condition)
    high = script(BASE, "true", "high", min_devices=2, max_devices=2, duration_s=900.0, priority=9)
    rows = (LiveRow(launch=low, arrival_s=100.0, since=since), LiveRow(launch=high, arrival_s=160.0))
    live = state(*rows, placed={"low": {"h0": 2}}, nodes=(("h0", 2),))
    assert LiveAdapter(priority, 10.0)(live).placements == placed


def test_a_live_job_ends_at_its_limit_and_starts_on_the_node_that_it_requires() -> None:
    late = LiveRow(launch=script(BASE, "true", "late", duration_s=900.0, limit_s=60.0), arrival_s=1.0, run_s=151.0)
    whole = LiveRow(
        launch=script(BASE, "true", "whole", min_devices=2, max_devices=2, duration_s=9.0, topology="node"), arrival_s=2.0
    )
    targets = LiveAdapter(fifo, 10.0)(state(late, whole, placed={"late": {"h0": 1}}, nodes=(("h0", 2), ("h1", 1))))
    assert targets.removed == {"late": "it reached its limit of 60.0 s"} and "whole" not in targets.placements
    room = LiveAdapter(fifo, 10.0)(state(whole, nodes=(("h0", 1), ("h1", 2))))
    assert room.placements == {"whole": {"h1": 2}}


def test_a_job_has_the_grace_of_its_partition_or_qos() -> None:
    """slurm.conf(5), GraceTime; sacctmgr(1), GraceTime."""
    launch = Launch.of(name="j", command=("true",), checkpoint="c", grace_s=30.0, queue="gpu", qos="low")
    partitions, qos = {"gpu": SlurmPartition(grace_s=300.0)}, {"low": Qos(grace_s=60.0)}
    tiers = SlurmSettings(partitions=partitions, qos=qos, preempt="partition_prio")
    found = [with_grace(launch, each) for each in (None, tiers, replace(tiers, preempt="qos"), replace(tiers, preempt="none"))]
    assert [each.grace_s for each in found] == [30.0, 300.0, 60.0, 30.0]
