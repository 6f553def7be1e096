"""Workers of several devices that take local steps: their own step, and the exchange between them in closed form."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.prediction import ORDINARY
from paceline.prediction.step.worker_step import one_worker
from paceline.strategy import Strategy
from paceline.workload import Workload

GPT2 = Workload.named("gpt2", 128)
SITES = Cluster.named("4x2 A100, 1Gb/s")
ALONE = Cluster.named("2 A100")
SHARDED: dict[str, Any] = {"sharding": "zero3", "shard_devices": 2}


def sites(**choices: Any) -> Strategy:
    return Strategy.of(world_size=8, global_batch_size=64, precision="bf16", **{"sync_every": 30, **choices})


def test_a_step_is_the_workers_own_and_a_share_of_the_exchange() -> None:
    own = ORDINARY.step(GPT2, ALONE, Strategy.of(world_size=2, global_batch_size=16, precision="bf16", sharding="zero3"))
    few, many = (ORDINARY.step(GPT2, SITES, sites(sync_every=every, **SHARDED)) for every in (30, 300))
    # what is not of the worker itself shrinks with the steps of a round; the rest waits for the slowest of more devices
    between = (few.step_time_s - many.step_time_s) / (1 / 30 - 1 / 300)
    sent = 2 * 3 / 4 * 4 * GPT2.num_parameters  # ring all-reduce of fp32 among 4 sites, all devices of a site together
    assert between == pytest.approx(sent / (1e9 / 8 * 0.8), rel=0.25)  # TCP reaches a part of the line
    assert own.step_time_s < many.step_time_s - between / 300 < 1.1 * own.step_time_s
    assert few.wire_bytes_per_device - many.wire_bytes_per_device == pytest.approx(sent / 2 * (1 / 30 - 1 / 300), rel=0.01)
    assert sum(few.exposed.values()) == pytest.approx(few.step_time_s)


def test_shards_fill_less_memory_and_a_delay_hides_the_exchange() -> None:
    whole, sharded = (ORDINARY.step(GPT2, SITES, sites(**how)) for how in ({"worker_devices": 2}, SHARDED))
    for name in ("anchor", "outer momentum"):
        assert sharded.memory[name] == whole.memory[name] == 2 * GPT2.num_parameters  # 4 bytes, a half each
    assert sharded.memory["optimizer state"] == pytest.approx(whole.memory["optimizer state"] / 2)
    hidden = ORDINARY.step(GPT2, SITES, sites(sync_delay=30, **SHARDED))
    assert hidden.exposed_comm_s < sharded.exposed_comm_s
    assert max(event.end_s for event in sharded.timeline) == pytest.approx(sharded.step_time_s)


def test_many_steps_at_once_and_one_alone_agree() -> None:
    strategies = [sites(compression="int8", **SHARDED), sites(worker_devices=2), sites()]
    steps = ORDINARY.many(GPT2, [(SITES, s) for s in strategies])
    for index, strategy in enumerate(strategies):
        alone = ORDINARY.step(GPT2, SITES, strategy)
        assert (steps.step_s[index], steps.memory_bytes[index]) == pytest.approx((alone.step_time_s, alone.memory_bytes))


def test_a_worker_alone_exchanges_dense_gradients_in_every_step() -> None:
    view, alone = one_worker(SITES, sites(compression="topk", outer_momentum=0.0, **SHARDED))
    assert (view.world_size, view.num_nodes, alone.world_size, alone.global_batch_size) == (2, 1, 2, 16)
    assert alone.sync_every == 1 and not alone.gradient_exchange.compression.compresses
    assert alone.parallelism.sharding.weights and not alone.parallelism.shard_devices
