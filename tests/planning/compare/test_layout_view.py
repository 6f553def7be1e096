"""What pictures of a layout show is the predicted step: its passes, its memory, its mesh."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.planning import explain
from paceline.planning.compare.layout_view import LayoutView, layout_view
from paceline.prediction import Predictor
from paceline.workload import TransformerShape

GPT = Workload.from_shape(TransformerShape(layers=8, hidden=1024, heads=16, vocabulary=51200), 512, name="gpt-8x1024")
CLUSTER = Cluster.named("2x8 A100", network="8x InfiniBand HDR")


def strategy(**choices: object) -> Strategy:
    usual = {"world_size": 16, "global_batch_size": 64, "precision": "bf16", "optimizer": "adam", "grad_accum_steps": 8}
    return Strategy.of(**{**usual, **choices})


def view(**choices: object) -> LayoutView:
    seen = layout_view(GPT, CLUSTER, strategy(**choices), Predictor())
    assert seen is not None
    return seen


def test_a_network_that_each_device_holds_has_no_view() -> None:
    assert layout_view(GPT, CLUSTER, strategy(grad_accum_steps=4), Predictor()) is None
    assert explain(GPT, CLUSTER, strategy(grad_accum_steps=4), scale=False).layout is None


def test_the_view_is_the_predicted_step() -> None:
    chosen = strategy(tensor=2, pipeline=4, virtual_stages=2)
    seen, p = view(tensor=2, pipeline=4, virtual_stages=2), Predictor().step(GPT, CLUSTER, chosen)
    assert seen.seconds == p.step_time_s
    assert max(sum(sizes.values()) for sizes in seen.stage_memory) == pytest.approx(p.memory_bytes)
    assert len(seen.passes) == len(seen.stage_memory) == 4 and {len(own) for own in seen.passes} == {2 * 2 * 8}
    assert max(own[-1].end_s for own in seen.passes) <= seen.seconds
    assert 0 < seen.idle < 0.5 and view(tensor=2).idle < 1e-9
    assert explain(GPT, CLUSTER, chosen, scale=False).layout is not None


def test_tensor_neighbours_are_neighbours_in_a_node_and_every_rank_has_its_place() -> None:
    seen = view(tensor=2, context=2, pipeline=2)
    places = [seen.place(rank) for rank in range(16)]
    assert len({(p.stage, p.replica, p.context, p.tensor) for p in places}) == 16
    assert [p.tensor for p in places[:4]] == [0, 1, 0, 1] and [p.context for p in places[:4]] == [0, 0, 1, 1]
    assert [p.stage for p in places] == [0] * 8 + [1] * 8
    assert [p.rank for p in seen.first_replica()] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert all(p.replica == 0 for p in seen.first_replica())
