"""Slurm's policy: factors by their formula, tiers, bounds, reservations within a window, and preemption."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement
from paceline.scheduling.policies.backfill import slurm as slurm_module
from paceline.scheduling.policies.backfill.conservative import conservative
from paceline.scheduling.policies.backfill.plan import BackfillPlan
from paceline.scheduling.policies.backfill.slurm import DEFAULT, priority_of, slurm
from paceline.scheduling.queues.slurm_settings import Account, Qos, SlurmPartition, SlurmSettings
from scheduling_toys import rigid, simulated, state

EIGHT = Fleet.named("1x8xT4")


def starts(jobs: list[Job], **settings: Any) -> dict[str, float]:
    schedule = simulated(jobs, partial(slurm, settings=SlurmSettings(**settings)), EIGHT)
    return {outcome.job.name: outcome.start_s for outcome in schedule.outcomes}


def test_the_priority_is_the_weighted_sum() -> None:
    """priority_multifactor.html: half of PriorityMaxAge, a quarter of the machine, 1 of 2 in the partition, half in QOS."""
    settings = SlurmSettings(
        weight_age=1000,
        weight_job_size=100,
        weight_partition=10,
        weight_qos=20,
        weight_fairshare=10_000,
        max_age_s=200,
        partitions={"a": SlurmPartition(priority=1), "b": SlurmPartition(priority=2)},
        qos={"half": Qos(priority=50), "best": Qos(priority=100)},
    )
    job = rigid("j", 1, 2, queue="a", qos="half", owner="ann", virtual_cluster="v", priority=7)
    given = state([job], EIGHT, time_s=100.0)
    assert priority_of(given, settings, {("v", "ann"): 0.25})[0] == 7 + 500 + 25 + 5 + 10 + 2500
    small = SlurmSettings(weight_job_size=100, favor_small=True)
    assert priority_of(given, small, {})[0] == 7 + 75
    assert priority_of(given, SlurmSettings(multifactor=False, weight_age=9), {})[0] == 7


def test_an_account_that_used_less_comes_first() -> None:
    """b has used nothing; then both are served by turns."""
    jobs = [rigid("a0", 100, 8, virtual_cluster="a"), *(rigid(f"a{n}", 100, 8, 1.0, virtual_cluster="a") for n in (1, 2))]
    jobs += [rigid(f"b{n}", 100, 8, 2.0, virtual_cluster="b") for n in (0, 1)]
    assert starts(jobs, weight_fairshare=1) == {"a0": 0, "b0": 100, "a1": 200, "b1": 300, "a2": 400}
    shares = {"a": Account(shares=9), "b": Account(shares=1)}
    assert starts(jobs, weight_fairshare=1, accounts=shares)["a1"] == 200
    assert starts(jobs, weight_fairshare=1, usage={("b", "default"): 1e6})["b0"] == 300


@pytest.mark.parametrize("owners, same", [(("", ""), True), (("heavy", "light"), False)])
def test_without_accounts_only_age_counts_and_every_job_has_a_reservation(owners: tuple[str, str], same: bool) -> None:
    """This is conservative backfill. Usage of owners changes the order of ``slurm`` alone."""
    lengths_s, sizes = (100, 400, 200), (2, 8, 1, 4)
    jobs = [rigid(f"{n}", lengths_s[n % 3], sizes[n % 4], 40.0 * n, owner=owners[n % 4 == 0]) for n in range(40)]
    ours, theirs = (simulated(jobs, policy, EIGHT).outcomes for policy in (partial(slurm, settings=DEFAULT), conservative))
    assert ([one.start_s for one in ours] == [other.start_s for other in theirs]) is same


def test_tiers_come_before_priorities_and_time_limits_before_lengths() -> None:
    partitions = {"low": SlurmPartition(tier=1), "high": SlurmPartition(tier=2)}
    jobs = [rigid("run", 100, 8), rigid("first", 10, 8, 1.0, queue="low", priority=99), rigid("tier", 10, 8, 2.0, queue="high")]
    assert starts(jobs, partitions=partitions) == {"run": 0, "tier": 100, "first": 110}
    narrow = [rigid("run", 100, 6, limit_s=100.0), rigid("head", 10, 8, 1.0), rigid("short", 50, 2, 2.0, limit_s=1000.0)]
    assert starts(narrow)["short"] == 110, "its limit does not fit before the head, its length does"
    assert starts([*narrow[:2], rigid("short", 50, 2, 2.0, limit_s=90.0)])["short"] == 2
    limits = {"d": SlurmPartition(default_limit_s=1000.0)}
    assert starts([*narrow[:2], rigid("short", 50, 2, 2.0, queue="d")], partitions=limits)["short"] == 110


def test_reservations_end_at_the_window_and_the_depth() -> None:
    """A job beyond the window or the depth of the search has no reservation, and one without backfill lets none pass."""
    jobs = [rigid("run", 1000, 6), rigid("head", 10, 8, 1.0), rigid("long", 2000, 2, 2.0)]
    assert starts(jobs) == {"run": 0, "head": 1000, "long": 1010}
    assert starts(jobs, window_s=500) == {"run": 0, "long": 2, "head": 2002}
    short = [*jobs[:2], rigid("short", 5, 2, 2.0)]
    assert starts(short)["short"] == 2 and starts(short, backfill=False)["short"] == 1010
    assert starts(short, max_tested=1)["short"] == 1010


def test_a_job_over_a_bound_waits_and_holds_up_no_other() -> None:
    jobs = [rigid(f"a{n}", 100, 4, float(n), virtual_cluster="sub", owner="ann", qos="q") for n in range(2)]
    jobs += [rigid("b", 100, 4, 5.0, virtual_cluster="other")]
    for bound in (
        {"accounts": {"top": Account(max_devices=4), "sub": Account(parent="top")}},
        {"qos": {"q": Qos(max_devices=4)}},
        {"qos": {"q": Qos(max_devices_per_user=4)}},
    ):
        assert starts(jobs, **bound) == {"a0": 0, "a1": 100, "b": 5}


@pytest.mark.parametrize("kind", ["qos", "partition_prio"])
def test_preemption_requeues_or_cancels(kind: str) -> None:
    jobs = [rigid("low", 1000, 8, qos="normal", queue="low"), rigid("high", 100, 8, 50.0, qos="high", queue="high")]
    rules: dict[str, Any] = {
        "preempt": kind,
        "qos": {"high": Qos(preempts=("normal",))},
        "partitions": {"low": SlurmPartition(), "high": SlurmPartition(tier=2)},
    }
    assert starts(jobs, **rules)["high"] == 50
    late = [*jobs, rigid("tick", 1, 8, 300.0)]
    assert starts(late, exempt_s=300.0, **rules)["high"] == 300
    schedule = simulated(jobs, partial(slurm, settings=SlurmSettings(preempt_mode="cancel", **rules)), EIGHT)
    assert schedule.outcomes[0].removed.startswith("it was preempted for high") and schedule.outcomes[1].end_s == 150


@pytest.mark.parametrize("window_s", [86_400.0, 300.0])
def test_skipped_reservations_change_no_decision(window_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain computation, which reserves devices for every waiting job."""
    fleet = Fleet.named("4x4xA100 + 2x8xT4")
    settings = SlurmSettings(
        weight_age=10,
        weight_fairshare=100,
        window_s=window_s,
        qos={"few": Qos(max_devices_per_user=6), "none": Qos(reserves=False)},
    )
    decided = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(BackfillPlan, "may_start", lambda *_: True)
            monkeypatch.setattr(slurm_module._LaterStarts, "any_after", lambda *_: True)
        draw = np.random.default_rng(7)
        for _ in range(25):
            jobs = [
                rigid(
                    f"{n}",
                    float(draw.integers(1, 9) * 100),
                    int(draw.choice([1, 2, 3, 4, 8, 12])),
                    owner=f"u{n % 3}",
                    qos=("", "few", "none")[int(draw.integers(3))],
                    limit_s=float(draw.integers(0, 9) * 150),
                    topology="node" if draw.random() < 0.3 else "",
                )
                for n in range(14)
            ]
            jobs = [replace(job, devices=min(job.devices, 4)) if job.topology else job for job in jobs]
            free, held, types = fleet.node_devices.copy(), np.zeros(14, np.int64), np.full(14, -1)
            placements: list[Placement] = [() for _ in jobs]
            for index in range(5):
                node = int(draw.integers(6))
                if free[node] >= jobs[index].devices:
                    held[index], types[index] = jobs[index].devices, fleet.node_types[node]
                    placements[index] = ((node, jobs[index].devices),)
                    free[node] -= jobs[index].devices
            also = {"devices": held, "type_index": types, "placements": placements, "free": free, "held_s": np.full(14, 50.0)}
            given = state(jobs, fleet, time_s=1000.0, **also)
            found, quick = slurm(given, settings), slurm(given, settings, explains=False)
            assert [quick.devices.tolist(), quick.memory] == [found.devices.tolist(), found.memory]
            assert quick.placements == found.placements and quick.holds_until_s == found.holds_until_s
            decided.append((found.devices.tolist(), found.type_index.tolist(), found.placements, found.reasons, found.memory))
    assert decided[:25] == decided[25:] and sum(any(each[0][5:]) for each in decided) > 20


def test_a_job_that_slurm_would_not_have_taken_leaves_at_once() -> None:
    """slurm.conf(5), AllowAccounts and AccountingStorageEnforce=associations."""
    jobs = [rigid("in", 100, 8, virtual_cluster="lab", owner="ann", queue="gpu")]
    jobs += [
        rigid("out", 100, 8, 1.0, virtual_cluster="other", owner="ann", queue="gpu"),
        rigid("none", 9, 1, 2.0, owner="eve"),
    ]
    settings = SlurmSettings(
        partitions={"gpu": SlurmPartition(allow_accounts=("lab",))},
        accounts={"lab": Account(members=("ann",)), "other": Account(members=("ann",))},
        enforces_associations=True,
    )
    for explains in (True, False):
        schedule = simulated(jobs, partial(slurm, settings=settings, explains=explains), EIGHT)
        assert [(one.removed_s, one.end_s == 100) for one in schedule.outcomes] == [(None, True), (1, False), (2, False)]
        assert "allows account lab, not other" in schedule.outcomes[1].removed and "eve" in schedule.outcomes[2].removed
