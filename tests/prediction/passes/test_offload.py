"""Offload against the bytes and rates of ZeRO-Offload, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.errors import UserError
from paceline.hardware import Device, device, devices, link
from paceline.prediction import Prediction, Predictor
from paceline.prediction.passes.offload import check_offload, copy_seconds, host_update_seconds
from paceline.strategy.offload import OFFLOAD_OPTIMIZER
from paceline.strategy.optimizer import OPTIMIZERS

NET, ON = Workload.named("gpt3-1.3b"), Cluster.named("8 A100")
P = NET.num_parameters


def step(cluster: Cluster = ON, **choices: object) -> Prediction:
    whole = {"world_size": cluster.world_size, "global_batch_size": 32, "precision": "bf16", "optimizer": "adam"}
    return Predictor().step(NET, cluster, Strategy.of(**{**whole, **choices}))


def test_the_host_updates_at_the_rate_of_its_memory_while_weights_return() -> None:
    adam, a100 = OPTIMIZERS["adam"], ON.device
    assert a100.host_bandwidth is not None
    update = 4 * 7 * 1e9 / (a100.host_bandwidth.value * TYPICAL.memory_share)
    moved = 2e9 / TYPICAL.bandwidth(link("PCIe 4.0 x16"))
    assert copy_seconds(2e9, a100, TYPICAL) == moved
    hidden = host_update_seconds(adam, 10**9, 2.0, a100, TYPICAL, 1, 10.0)
    assert hidden == pytest.approx(max(update, moved))
    assert host_update_seconds(adam, 10**9, 2.0, a100, TYPICAL, 3, 0.0) == pytest.approx(hidden + 3 * moved)


def test_the_optimizer_leaves_the_device() -> None:
    here, there = step(sharding="zero2"), step(sharding="zero2", offload="optimizer")
    assert there.memory["optimizer state"] == there.memory["gradients"] == 0
    assert there.memory["weights"] == pytest.approx(2 * P / 8)
    assert there.memory_bytes < here.memory_bytes and there.step_time_s > here.step_time_s
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
    alone = step(Cluster.named("1 A100"), offload="optimizer")
    assert alone.memory["weights"] == 2 * P and alone.memory["optimizer state"] == 0  # 2 M bytes, as in the paper
    assert any("Optimizer in the host's memory" in line for line in alone.assumptions)


def test_weights_are_copied_before_they_are_gathered() -> None:
    here, there = (step(sharding="zero3", offload=x) for x in ("optimizer", "weights+optimizer"))
    assert there.memory["weights"] == 0 and there.memory["gathered"] == here.memory["gathered"]
    copies = 2 * 2 * P / 8 / TYPICAL.bandwidth(link("PCIe 4.0 x16"))
    assert there.comm_s - here.comm_s == pytest.approx(copies)
    assert there.step_time_s >= here.step_time_s and there.wire_bytes_per_device == here.wire_bytes_per_device


def test_many_at_once_have_the_numbers_of_each() -> None:
    each = [
        Strategy.of(
            world_size=8, global_batch_size=batch, precision="bf16", optimizer="adam", sharding="zero3", offload=offload
        )
        for offload in ("none", "optimizer", "weights+optimizer")
        for batch in (8, 64)
    ]
    table = Predictor().many(NET, [(ON, strategy) for strategy in each])
    for strategy, seconds, needed in zip(each, table.step_s, table.memory_bytes, strict=True):
        p = Predictor().step(NET, ON, strategy)
        assert (seconds, needed) == pytest.approx((p.step_time_s, p.memory_bytes))


def test_where_the_catalogue_does_not_know_the_host_it_says_so() -> None:
    with pytest.raises(UserError, match="on MI300X: its link to the host is not in the catalogue; name a device that has it"):
        step(Cluster.named("8 MI300X"), offload="optimizer")
    no_rate: Device = replace(device("A100"), host_bandwidth=None)
    with pytest.raises(UserError, match="its host's memory bandwidth is not in the catalogue"):
        check_offload(OFFLOAD_OPTIMIZER, no_rate)
    with pytest.raises(UserError, match="whose memory is the host's; leave offload out"):
        check_offload(OFFLOAD_OPTIMIZER, next(d for d in devices() if d.kind == "cpu"))
    table = Predictor().many(
        NET, [(Cluster.named("8 MI300X"), Strategy.of(world_size=8, global_batch_size=8, offload="optimizer"))]
    )
    assert "its link to the host is not in the catalogue" in table.refused[0]


def test_a_divided_network_offloads_its_share() -> None:
    choices = {"tensor": 2, "pipeline": 2, "grad_accum_steps": 4, "sharding": "zero1"}
    here, there = (step(**choices, offload=x) for x in ("none", "optimizer"))
    assert there.memory["optimizer state"] == 0 < here.memory["optimizer state"]
    assert there.step_time_s > here.step_time_s and there.memory_bytes < here.memory_bytes
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
