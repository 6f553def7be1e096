"""Offload against the bytes and rates of ZeRO-Offload, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL, efficiency
from paceline.errors import UserError
from paceline.hardware import Device, device, devices, link
from paceline.hardware.hosts import host_share
from paceline.prediction import Prediction, Predictor
from paceline.prediction.passes.offload import (
    CORE_RATE,
    LOOPED,
    MEMORY_SHARE,
    UNBOUND_SHARE,
    can_offload,
    check_offload,
    copy_rate,
    gradient_wait_seconds,
    host_update_seconds,
    update_rate,
)
from paceline.strategy.frameworks import FRAMEWORKS
from paceline.strategy.offload import OFFLOAD_OPTIMIZER, OFFLOADS
from paceline.strategy.optimizer import OPTIMIZERS

NET, ON = Workload.named("gpt3-1.3b"), Cluster.named("8 A100")
P = NET.num_parameters
ADAM, SHARE = OPTIMIZERS["adam"], host_share(ON.device, 8)


def step(cluster: Cluster = ON, **choices: object) -> Prediction:
    whole = {"world_size": cluster.world_size, "global_batch_size": 32, "precision": "bf16", "optimizer": "adam"}
    return Predictor().step(NET, cluster, Strategy.of(**{**whole, **choices}))


def test_cores_or_memory_limit_the_update_on_a_host() -> None:
    assert update_rate(SHARE, TYPICAL) == UNBOUND_SHARE * 409.6e9 / 8 < CORE_RATE
    server = replace(SHARE, memory_bandwidth=1e12)
    assert update_rate(server, TYPICAL) == CORE_RATE  # torchrun: one thread for each of several processes
    assert update_rate(SHARE, efficiency("tuned")) == MEMORY_SHARE * 409.6e9 / 8
    assert update_rate(server, TYPICAL.under(FRAMEWORKS["deepspeed"])) == min(16 * CORE_RATE, UNBOUND_SHARE * 1e12)
    alone = host_share(ON.device, 1)
    assert update_rate(alone, TYPICAL) == MEMORY_SHARE * 409.6e9 / 8
    assert update_rate(replace(alone, cores=1.0), TYPICAL) == CORE_RATE


def test_fsdp_updates_weights_on_the_host_by_a_loop_of_operations() -> None:
    """accelerate's FSDP leaves the update to the script's optimizer; DeepSpeed puts its own on the host."""
    fsdp = TYPICAL.under(FRAMEWORKS["accelerate"])
    fused, other, looped = (
        host_update_seconds(ADAM, 10**9, 2.0, SHARE, e, OFFLOADS[name])
        for e, name in ((TYPICAL, "weights+optimizer"), (fsdp, "optimizer"), (fsdp, "weights+optimizer"))
    )
    assert fused == other and looped == pytest.approx(fused * (28 * LOOPED + 16) / 44)


def test_the_whole_of_a_dgx_2_updates_as_fast_as_the_paper_says() -> None:
    """Ren et al. 2021, Table 4: 0.22 s for 1 billion parameters, 2.57 s for 10; scaling and widening come on top."""
    whole = replace(host_share(device("V100 SXM3 32GB")), memory_bandwidth=256e9, cores=48, link_share=1.0)
    seconds = host_update_seconds(ADAM, 10**10, 2.0, whole, TYPICAL)
    assert seconds * 30 / 44 == pytest.approx(2.57, rel=0.03)


def test_copies_of_gradients_overlap_the_backward_pass_and_return_with_each_further_micro_step() -> None:
    moved = 2e9 / copy_rate(SHARE, TYPICAL)
    assert copy_rate(SHARE, TYPICAL) == pytest.approx(0.8 * link("PCIe 4.0 x16").bandwidth.value / 2)
    assert gradient_wait_seconds(10**9, 2.0, SHARE, TYPICAL, 1, 10.0) == 0
    assert gradient_wait_seconds(10**9, 2.0, SHARE, TYPICAL, 1, 0.0) == pytest.approx(moved)
    assert gradient_wait_seconds(10**9, 2.0, SHARE, TYPICAL, 3, moved) == pytest.approx(2 * moved)


def test_the_optimizer_leaves_the_device() -> None:
    here, there = step(sharding="zero2"), step(sharding="zero2", offload="optimizer")
    assert there.memory["optimizer state"] == there.memory["gradients"] == 0
    assert there.memory["weights"] == pytest.approx(2 * P / 8)
    assert there.memory_bytes < here.memory_bytes and there.step_time_s > here.step_time_s
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
    assert there.exposed["host"] >= 44 * P / 8 / update_rate(SHARE, TYPICAL)
    alone = step(Cluster.named("1 A100"), offload="optimizer")
    assert alone.memory["weights"] == 2 * P and alone.memory["optimizer state"] == 0  # 2 M bytes, as in the paper
    assert any("Optimizer in the host's memory" in line for line in alone.assumptions)


def test_weights_are_copied_before_they_are_gathered() -> None:
    here, there = (step(sharding="zero3", offload=x) for x in ("optimizer", "weights+optimizer"))
    assert there.memory["weights"] == 0 and there.memory["gathered"] == here.memory["gathered"]
    copies = 2 * 2 * P / 8 / copy_rate(SHARE, TYPICAL)
    assert there.comm_s - here.comm_s == pytest.approx(copies)
    assert there.step_time_s >= here.step_time_s and there.wire_bytes_per_device == here.wire_bytes_per_device
    assert there.exposed["host"] > here.exposed["host"]


@pytest.mark.parametrize("offload", ["optimizer", "weights+optimizer"])
def test_a_free_host_and_a_faster_one_shorten_the_step(offload: str) -> None:
    strategy = Strategy.of(world_size=8, global_batch_size=32, precision="bf16", sharding="zero3", offload=offload)
    slow, fast = (Predictor().step(NET, Cluster.named(f"8 {name}"), strategy).step_time_s for name in ("H100", "GH200"))
    free = Predictor().without("host").step(NET, ON, strategy)
    assert free.exposed["host"] == 0 and free.step_time_s < Predictor().step(NET, ON, strategy).step_time_s
    assert fast < slow


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


def test_state_is_offered_to_hosts_that_hold_it() -> None:
    desktop = Cluster.named("2 RTX 4090")
    assert can_offload(7 * 10**9, desktop) and not can_offload(8 * 10**9, desktop)  # 128 GiB of 18 bytes each
    assert can_offload(70 * 10**9, Cluster.named("8 H100")) and not can_offload(10**6, Cluster.named("8 Trainium"))


def test_where_the_catalogue_does_not_know_the_host_it_says_so() -> None:
    with pytest.raises(UserError, match="on Trainium: its link to the host is not in the catalogue; name a device that has it"):
        step(Cluster.named("8 Trainium"), offload="optimizer")
    no_host: Device = replace(device("A100"), host="")
    with pytest.raises(UserError, match="its host is not in the catalogue"):
        check_offload(OFFLOAD_OPTIMIZER, no_host)
    with pytest.raises(UserError, match="whose memory is the host's; leave offload out"):
        check_offload(OFFLOAD_OPTIMIZER, next(d for d in devices() if d.kind == "cpu"))
    table = Predictor().many(
        NET, [(Cluster.named("8 Trainium"), Strategy.of(world_size=8, global_batch_size=8, offload="optimizer"))]
    )
    assert "its link to the host is not in the catalogue" in table.refused[0]


def test_a_divided_network_offloads_its_share() -> None:
    choices = {"tensor": 2, "pipeline": 2, "grad_accum_steps": 4, "sharding": "zero1"}
    here, there = (step(**choices, offload=x) for x in ("none", "optimizer"))
    assert there.memory["optimizer state"] == 0 < here.memory["optimizer state"]
    assert there.step_time_s > here.step_time_s and there.memory_bytes < here.memory_bytes
    assert sum(there.exposed.values()) == pytest.approx(there.step_time_s)
