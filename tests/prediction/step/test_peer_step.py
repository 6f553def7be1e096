"""Steps of peers that leave late ones behind: the steps of workers if all are in time, and steps by hand if one is late."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.errors import UserError
from paceline.hardware import cluster
from paceline.prediction import ORDINARY, Prediction, Predictor
from paceline.prediction.step.peer_step import peer_times, shared_bytes
from paceline.strategy import Strategy
from paceline.workload import Workload

NETWORK = Workload.named("resnet-50")
WHERE = cluster("A100", 1, 4, "100Mb/s")
EVERY = 4000


def strategy(**choices: Any) -> Strategy:
    return Strategy.of(**{"world_size": 4, "global_batch_size": 64, "optimizer": "momentum", "sync_every": EVERY, **choices})


def step(times: tuple[float, ...] = (), **choices: Any) -> Prediction:
    return Predictor(worker_times=times).step(NETWORK, WHERE, strategy(**choices))


def test_with_a_long_deadline_peers_are_workers_that_wait_for_all() -> None:
    for more in ({}, {"compression": "int8"}, {"worker_devices": 2}):
        peers, workers = step(round_deadline_s=10**4, **more), step(**more)
        assert peers.step_time_s == pytest.approx(workers.step_time_s, rel=0.005)
        assert (peers.wire_bytes_per_device, peers.counted) == (pytest.approx(workers.wire_bytes_per_device, abs=1), 1)
        for name in peers.memory.keys() - {"communicators"}:  # peers exchange over gloo
            assert peers.memory[name] == workers.memory[name]
        assert sum(peers.exposed.values()) == pytest.approx(peers.step_time_s)


def test_a_slow_worker_delays_all_or_is_left_behind() -> None:
    alone = step().step_time_s
    slow = step((1.5,)).step_time_s
    waits = step((1.5,), round_deadline_s=10.0)
    assert slow == pytest.approx(1.5 * (alone - step().exposed_comm_s) + step().exposed_comm_s, rel=0.02)
    assert waits.step_time_s < slow and 0.75 < waits.counted < 0.85, "the slow one has fewer rounds"
    assert waits.samples_per_s == pytest.approx(waits.counted * 64 / waits.step_time_s)
    assert waits.to_json()["counted"] == waits.counted and "counted" not in step().to_json()


def test_decoupled_learners_send_shared_weights_instead_of_changes() -> None:
    found = step(round_deadline_s=0.0, max_age=3)
    assert shared_bytes(NETWORK, strategy(round_deadline_s=0.0, max_age=3)) == 12 * NETWORK.num_parameters
    assert shared_bytes(NETWORK, strategy(round_deadline_s=0.0)) == 8 * NETWORK.num_parameters
    assert shared_bytes(NETWORK, strategy(round_deadline_s=0.0, outer_momentum=0.0)) == 4 * NETWORK.num_parameters
    assert found.wire_bytes_per_device > step().wire_bytes_per_device
    assert found.wire_bytes_per_device < (12 + 8) * NETWORK.num_parameters / EVERY
    many = ORDINARY.many(NETWORK, [(WHERE, strategy(round_deadline_s=0.0, max_age=3)), (WHERE, strategy())])
    assert many.step_s == pytest.approx([found.step_time_s, step().step_time_s])


def test_what_no_peers_can_run_is_refused() -> None:
    for more in ({"fragments": 2}, {"sync_delay": 5}, {"exchange": "hierarchical", "ranks_per_node": 2}):
        with pytest.raises(UserError, match="peers"):
            strategy(round_deadline_s=5.0, **more)
    assert peer_times((2.0,), 3) == [2.0, 1.0, 1.0]
    for times in ((1.0,) * 5, (0.0,)):
        with pytest.raises(UserError, match="times"):
            step(times, round_deadline_s=5.0)
        with pytest.raises(UserError, match="times"):
            step(times)
    with pytest.raises(UserError, match="several devices hold"):
        Predictor(worker_times=(2.0,)).step(
            Workload.named("gpt2"), WHERE, Strategy.of(world_size=4, global_batch_size=8, tensor=2)
        )
