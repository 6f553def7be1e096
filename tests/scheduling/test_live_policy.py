"""The simulator's policies on live states."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.executor import Placement
from paceline.scheduling.journal import LiveRow
from paceline.scheduling.live import LiveState
from paceline.scheduling.live_policy import LiveAdapter, ReportedOutlook, core_job, even
from paceline.scheduling.policies.fifo import fifo
from paceline.scheduling.policies.goodput import goodput

BASE = Path("/data")
NODES = (("h0", 2), ("h1", 2))


def row(name: str, arrival_s: float = 100.0, **more: object) -> LiveRow:
    return LiveRow(job=training(BASE, name), arrival_s=arrival_s, **more)  # type: ignore[arg-type]


def state(*rows: LiveRow, placed: dict[str, Placement] | None = None, nodes: tuple[tuple[str, int], ...] = NODES) -> LiveState:
    return LiveState(now_s=200.0, rows=rows, placed=placed or {}, nodes=nodes)


def test_what_a_job_has_reported_is_believed_and_the_rest_in_proportion() -> None:
    fresh = ReportedOutlook(row("a"))
    assert fresh.goodput(0, 5).tolist() == [0, 1, 2, 2, 4, 4] and fresh.relative_spread() == math.inf
    assert np.isnan(fresh.seconds_left(0, 2)[1:]).all() and fresh.seconds_left(0, 2)[0] == math.inf
    seen = ReportedOutlook(row("a", speeds={2: 60.0}, progress={"epoch": 2.0, "step": 20.0}))
    assert seen.goodput(0, 4).tolist() == [0, 30, 60, 60, 120] and seen.relative_spread() == 0 and seen.max_devices() == 4
    assert seen.seconds_left(0, 2)[2] == 4 * 10 * 64 / 60.0  # four of six epochs, ten steps each


def test_an_elastic_job_asks_for_the_least_and_a_rigid_one_for_what_it_has() -> None:
    job = core_job(row("a"), 90.0)
    assert (job.arrival_s, job.devices, job.max_devices, job.adapts) == (10.0, 1, 4, {"devices"})
    rigid = LiveRow(job=script(BASE, "true", min_devices=3, max_devices=3), arrival_s=80.0)
    assert core_job(rigid, 90.0).devices == 3 and not core_job(rigid, 90.0).adapts


def test_fifo_keeps_who_runs_and_places_the_next() -> None:
    rigid = LiveRow(job=script(BASE, "true", "big", min_devices=4, max_devices=4), arrival_s=150.0)
    decide = LiveAdapter(fifo, "T4", 10.0)
    placed: dict[str, Placement] = {"b": {"h1": 1}}
    decision = decide(state(row("a"), row("b", 110.0), rigid, placed=placed))
    assert decision.placements == {"a": {"h0": 1}, "b": {"h1": 1}}


def test_goodput_shares_out_and_a_lost_node_is_left() -> None:
    decide = LiveAdapter(goodput, "T4", 10.0)
    first = decide(state(row("a", speeds={1: 10.0}), row("b", speeds={1: 10.0})))
    assert sorted(sum(p.values()) for p in first.placements.values()) == [2, 2]
    aged = tuple(replace(row(name, speeds={1: 10.0}), starts=1) for name in ("a", "b"))
    second = decide(state(*aged, placed=first.placements, nodes=(("h0", 2),)))
    assert {node for placement in second.placements.values() for node in placement} == {"h0"}
    assert sum(sum(p.values()) for p in second.placements.values()) == 2


def test_who_ran_on_a_node_that_died_is_placed_anew() -> None:
    decide = LiveAdapter(fifo, "T4", 10.0)
    decide(state(row("a")))
    decision = decide(state(row("a"), placed={"a": {"h1": 1}}, nodes=(("h0", 2),)))
    assert decision.placements == {"a": {"h0": 1}}


def test_nodes_of_several_sizes_are_refused() -> None:
    with pytest.raises(UserError, match="the nodes have 2 and 4 devices"):
        LiveAdapter(fifo, "T4", 10.0)(state(row("a"), nodes=(("h0", 2), ("h1", 4))))


def test_even_gives_all_and_moves_nobody_without_need() -> None:
    decision = even(state(row("a")))
    assert decision.placements == {"a": {"h0": 2, "h1": 2}}
    decision = even(state(row("a"), row("b"), placed={"b": {"h1": 2}}))
    assert decision.placements == {"a": {"h0": 2}, "b": {"h1": 2}}
    many = even(state(*(row(f"j{n}") for n in range(6))))
    assert list(many.placements) == ["j0", "j1", "j2", "j3"]
