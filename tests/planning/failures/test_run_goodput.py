"""Goodput of a predicted strategy."""

from __future__ import annotations

import pytest

from paceline.hardware import Cluster
from paceline.planning.failures.failures import Failures
from paceline.planning.failures.local_goodput import SiteFailures
from paceline.planning.failures.run_goodput import run_goodput
from paceline.prediction import ORDINARY
from paceline.strategy import Strategy
from paceline.workload import Workload

GPT2, CLUSTER = Workload.named("gpt2", 128), Cluster.named("4x2 A100, 1Gb/s")
OFTEN = Failures(between_s=3.6e5, restart_s=600.0, write_s=30.0)


def test_workers_fail_with_any_of_their_devices_and_lose_less_than_all() -> None:
    local = Strategy.of(
        world_size=8, global_batch_size=64, precision="bf16", sync_every=30, worker_devices=2, round_deadline_s=20.0
    )
    prediction = ORDINARY.step(GPT2, CLUSTER, local)
    found = run_goodput(prediction, CLUSTER, local, OFTEN)
    assert found is not None and found.peers is not None and found.decoupled is not None
    round_s = 30 * prediction.step_time_s
    case = SiteFailures(sites=4, mean_s=1.8e5, round_s=round_s, rejoin_s=600.0, wait_s=20.0)
    assert (found.workers, found.peers, found.decoupled) == (4, case.peers(), case.decoupled())
    every = local.changed(sync_every=1)
    dense = run_goodput(ORDINARY.step(GPT2, CLUSTER, every), CLUSTER, every, OFTEN)
    assert dense is not None and dense.peers is None
    assert dense.all_stop == pytest.approx(found.all_stop) and found.all_stop < found.peers
    assert [name for name, _ in found.pairs()] == ["failures", "all restart", "peers continue", "decoupled"]
    assert (
        dense.brief == f"goodput {dense.all_stop:.1%} if all restart" and f"{found.peers:.1%} if peers continue" in found.brief
    )


def test_without_a_rate_there_is_no_goodput() -> None:
    every = Strategy.of(world_size=8, global_batch_size=64, precision="bf16")
    assert run_goodput(ORDINARY.step(GPT2, CLUSTER, every), CLUSTER, every, Failures()) is None
