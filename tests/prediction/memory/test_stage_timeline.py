"""Stages of a pipeline: how many micro batches each holds, and when."""

from __future__ import annotations

import pytest

from paceline import Cluster, Predictor, Strategy, Workload
from paceline.memory_timeline import MemoryTimeline
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=256, heads=4, vocabulary=2048), 128, name="gpt-8x256")


def timelines(schedule: str = "1f1b", micro: int = 8, **choices: object) -> tuple[MemoryTimeline, ...]:
    choices = {"pipeline": 4, "schedule": schedule, "micro_batches": micro, "precision": "bf16", **choices}
    strategy = Strategy.of(world_size=8, global_batch_size=2 * micro, **choices)
    return tuple(Predictor(framework="tuned").step(GPT, Cluster.named("8 A100"), strategy).memory_timelines)


def in_flight(t: MemoryTimeline) -> int:
    """Most tensors of one layer at once."""
    layer = next(a.name for a in t.allocations if a.purpose == "activations")
    own = [a for a in t.allocations if a.name == layer]
    return max(sum(a.start_s <= b.start_s < a.end_s for a in own) for b in own)


def test_1f1b_holds_as_many_micro_batches_as_stages_follow() -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, section 2.2: p on the first stage, one on the last."""
    assert [in_flight(t) for t in timelines()] == [4, 3, 2, 1]


def test_gpipe_holds_every_micro_batch() -> None:
    """Huang et al. 2019, arXiv:1811.06965."""
    assert [in_flight(t) for t in timelines("gpipe")] == [8] * 4


def test_stages_have_their_ranks_and_their_own_time() -> None:
    found = timelines()
    assert [t.ranks for t in found] == [range(0, 2), range(2, 4), range(4, 6), range(6, 8)]
    begins = [min(a.start_s for a in t.allocations if a.purpose == "activations") for t in found]
    assert begins == sorted(begins) and begins[0] < begins[-1]
    assert [t.memory.get("inputs", 0) > 0 for t in found] == [True, False, False, False]
    assert len({t.step_s for t in found}) == 1 and all(p.end_s <= t.step_s * (1 + 1e-9) for t in found for p in t.passes)


def test_a_zero_bubble_pipeline_holds_operands_until_the_gradients_of_weights() -> None:
    """Qi et al. 2024, arXiv:2401.10241: the last stage delays as many micro batches as stages come before it."""
    names = [sum(a.name == "operands of weight gradients" for a in t.allocations) for t in timelines("zero_bubble")]
    assert names == [8] * 4
    assert not [a for t in timelines() for a in t.allocations if a.name.startswith("operands")]
    for t in timelines("zero_bubble"):
        own = [a for a in t.allocations if a.name == "operands of weight gradients"]
        assert max(sum(a.start_s <= b.start_s < a.end_s for a in own) for b in own) <= t.stage + 1


def test_parts_of_a_stage_take_turns() -> None:
    (first, *_) = timelines(virtual_stages=2)
    blocks = {a.name.rpartition(".attention")[0] for a in first.allocations if ".attention" in a.name}
    assert len(blocks) == 2 and first.peak_bytes == pytest.approx(sum(first.memory.values()))


def test_gathered_weights_of_a_stage_are_there_while_it_computes() -> None:
    for sharding, passing in (("zero3", True), ("ddp", False)):
        for t in timelines(sharding=sharding):
            assert any(a.purpose == "gathered" for a in t.allocations) is passing
