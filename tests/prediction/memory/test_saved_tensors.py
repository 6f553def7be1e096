"""Tensors of one micro batch against their life by hand."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.prediction.memory.saved_tensors import FINE, allocations, saved_tensors
from paceline.prediction.passes.recompute import recomputed
from paceline.prediction.step.memory import loss_bytes, sample_bytes
from paceline.prediction.step.timeline import LayerPass
from paceline.strategy.frameworks.loss import CHUNKED_LOSS, CUT_LOSS, IN_PLACE_LOSS, PLAIN_LOSS
from paceline.strategy.offload import HostActivations
from paceline.strategy.recompute import FULL_RECOMPUTE, NO_RECOMPUTE, Recompute
from paceline.workload import TransformerShape
from prediction_toys import make_workload

GPT = Workload.from_shape(TransformerShape(layers=3, hidden=64, heads=4, vocabulary=512), 32, name="gpt-3x64")


def passes(layers: int, recompute: dict[int, float] | None = None) -> list[LayerPass]:
    """Forward one second a layer, backward two; ``recompute``: seconds before the backward pass of a layer."""
    made, clock = [], 0.0
    for layer in range(layers):
        made.append(LayerPass("forward", layer, clock, 1.0))
        clock += 1
    for layer in reversed(range(layers)):
        if seconds := (recompute or {}).get(layer):
            made.append(LayerPass("recompute", layer, clock, seconds))
            clock += seconds
        made.append(LayerPass("backward", layer, clock, 2.0))
        clock += 2
    return made


def test_a_layer_s_tensors_live_from_its_forward_to_its_backward_pass() -> None:
    net = make_workload(layers=3)
    saved = saved_tensors(net, "fp32", NO_RECOMPUTE, "fp32", 2, 0.0, 1, IN_PLACE_LOSS)
    made = list(allocations(saved, passes(3)))
    assert [(a.name, a.bytes, a.start_s, a.end_s) for a in made] == [
        ("fc0", 8000, 0, 9),
        ("fc1", 8000, 1, 7),
        ("fc2", 8000, 2, 5),
    ]


def test_a_recomputed_block_keeps_its_input_and_is_there_while_its_backward_pass_runs() -> None:
    net = make_workload(layers=4, blocks=2)
    saved = saved_tensors(net, "fp32", FULL_RECOMPUTE, "fp32", 1, 0.0, 1, IN_PLACE_LOSS)
    made = list(allocations(saved, passes(4, {3: 1.0, 1: 1.0})))
    kept = [(a.name, a.start_s, a.end_s) for a in made if not a.name.endswith("again")]
    again = [(a.name, a.bytes, a.start_s, a.end_s) for a in made if a.name.endswith("again")]
    assert kept == [("b.0.fc0", 0, 14), ("b.1.fc2", 2, 9)]
    assert again == [
        ("b.0.fc0 again", 4000, 9, 14),
        ("b.0.fc1 again", 4000, 9.5, 12),
        ("b.1.fc2 again", 4000, 4, 9),
        ("b.1.fc3 again", 4000, 4.5, 7),
    ]


@pytest.mark.parametrize("name", ["none", "full", "selective", "selective:mlp", "selective:layernorm", "selective:op"])
def test_kept_bytes_and_parts_are_those_of_the_prediction(name: str) -> None:
    choice = Recompute.of(name)
    plan = recomputed(GPT, choice, "autocast")
    assert sum(plan.kept) == plan.kept_bytes and max((extra for _, extra in plan.parts), default=0.0) == plan.largest_bytes
    saved = saved_tensors(GPT, "autocast", choice, "bf16", 3, 0.0, 1, IN_PLACE_LOSS)
    assert saved.total == pytest.approx(3 * plan.kept_bytes)
    assert [sum(sizes) for _, sizes in saved.parts] == pytest.approx([3 * extra for _, extra in plan.parts])


def test_the_gradients_of_a_loss_of_plain_pytorch_last_until_the_logits_are_done() -> None:
    of_sample = sample_bytes(GPT, "fp32", loss=PLAIN_LOSS)
    saved = saved_tensors(GPT, "fp32", NO_RECOMPUTE, "fp32", 2, 2 * of_sample["activations"], 1, PLAIN_LOSS)
    assert saved.of_loss == 2 * 2 * loss_bytes(GPT, "fp32") > 0
    ran = passes(len(GPT.layers))
    (gradients,) = [a for a in allocations(saved, ran) if a.name.startswith("gradients")]
    logits = next(i for i, layer in enumerate(GPT.layers) if layer.is_logits)
    (end,) = [p.end_s for p in ran if p.kind == "backward" and p.layer == logits]
    (start,) = [p.start_s for p in ran if p.kind == "backward" and p.layer == saved.loss]
    assert (gradients.start_s, gradients.end_s) == (start, end)
    assert not saved_tensors(GPT, "fp32", NO_RECOMPUTE, "fp32", 2, 0.0, 1, IN_PLACE_LOSS).of_loss


def test_activations_on_the_host_leave_with_the_next_block_and_return_with_it() -> None:
    """Four blocks of one layer: one second forward, two backward. The last stays."""
    net = make_workload(layers=4, blocks=1)
    saved = saved_tensors(net, "fp32", NO_RECOMPUTE, "fp32", 1, 0.0, 1, IN_PLACE_LOSS, HostActivations())
    made = list(allocations(saved, passes(4)))
    spans = [(a.start_s, a.end_s) for a in made]
    assert spans == [(0, 2), (8, 12), (1, 3), (6, 10), (2, 4), (4, 8), (3, 6)] and saved.total == 0
    at_once = [sum(a.start_s <= b.start_s < a.end_s for a in made) for b in made]
    assert max(at_once) == 2
    few = saved_tensors(net, "fp32", NO_RECOMPUTE, "fp32", 1, 0.0, 1, IN_PLACE_LOSS, HostActivations(layers=1))
    kept = [(a.name, a.start_s, a.end_s) for a in allocations(few, passes(4)) if a.name != "b.0.fc0"]
    assert kept == [("b.1.fc1", 1, 10), ("b.2.fc2", 2, 8), ("b.3.fc3", 3, 6)]


def test_a_loss_in_parts_holds_a_part_of_the_logits_or_none() -> None:
    stored = loss_bytes(GPT, "fp32")
    whole, parts, none = (
        saved_tensors(GPT, "fp32", NO_RECOMPUTE, "fp32", 1, 1e12, 1, loss) for loss in (PLAIN_LOSS, CHUNKED_LOSS, CUT_LOSS)
    )
    assert whole.total - parts.total == pytest.approx(stored * 7 / 8) and whole.total - none.total == pytest.approx(stored)
    assert (whole.of_loss, parts.of_loss, none.of_loss) == (2 * stored, stored / 4, 0)


def test_very_many_passes_are_drawn_by_block() -> None:
    few, many = (saved_tensors(GPT, "fp32", FULL_RECOMPUTE, "fp32", 1, 0.0, count, IN_PLACE_LOSS) for count in (1, FINE))
    assert few.total == many.total and len(many.groups) < len(few.groups) == len(GPT.layers)
    ran = passes(len(GPT.layers))
    sizes = [sum(a.bytes for a in allocations(saved, ran)) for saved in (few, many)]
    assert sizes[0] == pytest.approx(sizes[1])
    assert {"blocks.0", "blocks.1"} <= {a.name for a in allocations(many, ran)}
