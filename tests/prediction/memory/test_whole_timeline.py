"""Units of FSDP, buffers of the update, and state that is held."""

from __future__ import annotations

import pytest

from paceline import Predictor, Strategy
from paceline.memory_timeline import Allocation, MemoryTimeline
from prediction_toys import make_cluster, make_workload

UNIT = 4e6
"""Bytes of a layer of a thousand times a thousand in fp32."""


def timeline(
    sharding: str, layers: int = 5, micro: int = 1, network: float = 1e9, software: str = "ordinary"
) -> MemoryTimeline:
    strategy = Strategy.of(
        world_size=4,
        global_batch_size=16 * micro,
        grad_accum_steps=micro,
        sharding=sharding,
        bucket_bytes=1,
        optimizer="adam",
    )
    return (
        Predictor(framework=software).step(make_workload(layers), make_cluster(4, 1, intra=network), strategy).memory_timeline()
    )


def gathered(t: MemoryTimeline, what: str) -> list[Allocation]:
    return [a for a in t.allocations if a.purpose == "gathered" and a.name.startswith(what)]


def most(tensors: list[Allocation]) -> int:
    """Largest number at once; what ends makes room first."""
    return max(sum(a.start_s <= b.start_s + 1e-12 < a.end_s for a in tensors) for b in tensors)


@pytest.mark.parametrize("network", [1e8, 1e10, 1e13])
@pytest.mark.parametrize("micro", [1, 2])
def test_zero3_has_two_units_of_weights_and_two_of_gradients_at_once(network: float, micro: int) -> None:
    t = timeline("zero3", network=network, micro=micro)
    weights, gradients = gathered(t, "weights"), gathered(t, "gradients")
    assert (len(weights), len(gradients)) == (2 * 5 * micro, 5 * micro)  # forward and backward
    assert {a.bytes for a in (*weights, *gradients)} == {UNIT}
    assert most(weights) == 2 and most(gradients) <= 2
    assert t.memory["gathered"] == 4 * UNIT


def test_deepspeed_keeps_gathered_weights_to_use_them_again() -> None:
    """``stage3_max_live_parameters`` is far above this network, so all its weights stay during the passes."""
    t = timeline("zero3", software="deepspeed")
    (kept,) = gathered(t, "weights kept")
    assert t.memory["gathered"] == max(5, 4) * UNIT and kept.bytes == UNIT
    assert (kept.start_s, kept.end_s) == (t.passes[0].start_s, pytest.approx(t.passes[1].end_s))


@pytest.mark.parametrize("network", [1e8, 1e13])
def test_zero2_has_all_weights_until_the_end_of_the_backward_pass(network: float) -> None:
    t = timeline("zero2", network=network)
    weights, gradients = gathered(t, "weights"), gathered(t, "gradients")
    assert len(weights) == len(gradients) == most(weights) == 5 and most(gradients) <= 2
    (end,) = {a.end_s for a in weights}
    assert end == pytest.approx(max(p.end_s for p in t.passes if p.name == "backward"))


def test_zero1_gathers_after_the_update() -> None:
    t = timeline("zero1")
    (buffer,) = [a for a in t.allocations if a.purpose == "gathered"]
    update = next(p for p in t.passes if p.name == "optimizer")
    assert buffer.start_s == pytest.approx(update.end_s) and buffer.bytes == pytest.approx(1.25 * UNIT) and t.margin == 0


def test_the_update_of_plain_pytorch_needs_the_roots_of_the_moments() -> None:
    """A tenth of a sample: the update needs more than the passes."""
    strategy = Strategy.of(world_size=1, global_batch_size=1, optimizer="adam")
    t = Predictor().step(make_workload(), make_cluster(1, 1), strategy).memory_timeline()
    (update,) = [a for a in t.allocations if a.purpose == "update"]
    assert update.bytes == pytest.approx(4 * UNIT) and t.peak_pass == "optimizer" and t.margin == 0
    tuned = Predictor(framework="tuned").step(make_workload(), make_cluster(1, 1), strategy).memory_timeline()
    assert not [a for a in tuned.allocations if a.purpose == "update"]


def test_state_is_held_throughout() -> None:
    t = timeline("ddp")
    held = {a.purpose: a.bytes for a in t.allocations if a.held and a.purpose != "workspace"}
    assert held == {"weights": 5 * UNIT, "gradients": 5 * UNIT, "optimizer state": 10 * UNIT, "buckets": 5 * UNIT}
    assert t.curve.sizes[0].sum() == t.curve.sizes[-1].sum() == 25 * UNIT + 2 * 8.125 * 2**20


def test_each_micro_step_saves_its_tensors_again() -> None:
    one, three = timeline("ddp"), timeline("ddp", micro=3)
    counts = [sum(a.purpose == "activations" for a in t.allocations) for t in (one, three)]
    assert counts == [5, 15] and one.peak_bytes == pytest.approx(three.peak_bytes)
    assert [p.name for p in three.passes] == ["forward", "backward"] * 3 + ["optimizer"]
