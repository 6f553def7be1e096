"""The gradients of weights as a part of the backward pass: its seconds and what is held for it."""

from __future__ import annotations

import pytest

from paceline import Cluster, Strategy, Workload
from paceline.calibration.constants import TYPICAL
from paceline.prediction import Prediction, Predictor
from paceline.prediction.passes.compute import layer_seconds
from paceline.prediction.passes.weight_gradients import weight_bytes, weight_seconds
from paceline.workload import TransformerShape

S, H = 2048, 4096
ON = Cluster.named("4 A100")


def gpt(layers: int) -> Workload:
    return Workload.from_shape(TransformerShape(layers=layers, hidden=H, heads=32, vocabulary=1024), S)


def test_a_block_holds_the_bytes_of_the_paper() -> None:
    # Qi et al. 2024, arXiv:2401.10241, table 1: 32 s b h
    sizes = [weight_bytes(gpt(layers), "narrow") for layers in (4, 8)]
    assert sizes[1] - sizes[0] == 4 * 32 * S * H
    assert weight_bytes(gpt(4), "fp32") == 2 * sizes[0]


def test_it_is_about_half_of_the_products_backward_pass() -> None:
    net, device = gpt(4), ON.device
    late = weight_seconds(net, 2, "bf16", device, TYPICAL)
    forward, backward = layer_seconds(net, 2, "bf16", device, TYPICAL)
    for i, layer in enumerate(net.layers):
        if layer.kind == "Linear":
            assert 0.8 * forward.total[i] < late[i] < 0.55 * backward.total[i]
        elif layer.kind in ("Attention", "LayerNorm", "Dropout"):
            assert late[i] == 0


def run(schedule: str, **choices: object) -> Prediction:
    whole = {"world_size": 4, "pipeline": 4, "grad_accum_steps": 8, "global_batch_size": 8, "precision": "bf16", **choices}
    return Predictor().step(gpt(16), ON, Strategy.of(**whole, schedule=schedule, optimizer="adam"))


def test_a_zero_bubble_pipeline_waits_less_for_the_same_work() -> None:
    before, after = run("1f1b"), run("zero_bubble")
    assert after.exposed["pipeline bubble"] < 0.55 * before.exposed["pipeline bubble"]
    assert after.compute_s - after.exposed["pipeline bubble"] == pytest.approx(
        before.compute_s - before.exposed["pipeline bubble"]
    )
    assert after.memory_bytes == pytest.approx(before.memory_bytes, rel=0.05)
    assert sum(after.exposed.values()) == pytest.approx(after.step_time_s)
    names = [event.name for event in after.timeline]
    assert sum(name.startswith("weights stage") for name in names) == 8
    assert after.low_s <= after.step_time_s <= after.high_s


def test_a_pipeline_without_its_bubble_is_the_same_with_both() -> None:
    free = Predictor().without("pipeline bubble")
    chosen = {"world_size": 4, "pipeline": 4, "grad_accum_steps": 8, "global_batch_size": 8, "precision": "bf16"}
    steps = [free.step(gpt(16), ON, Strategy.of(**chosen, schedule=name)).step_time_s for name in ("1f1b", "zero_bubble")]
    assert steps[0] == pytest.approx(steps[1])


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_a_zero_bubble_pipeline_holds_little_more_than_1f1b_whatever_divides_its_layers(tensor: int) -> None:
    """ZB-H1 keeps the memory of 1F1B (Qi et al. 2024, arXiv:2401.10241, section 2.2)."""
    network, cluster = Workload.named("llama-2-7b", seq_len=2048), Cluster.named("4x8 H100", network="8x InfiniBand NDR")
    held = []
    for schedule in ("1f1b", "zero_bubble"):
        chosen = Strategy.of(
            world_size=32,
            global_batch_size=16 * 32 // (4 * tensor),
            tensor=tensor,
            sequence=tensor > 1,
            pipeline=4,
            micro_batches=16,
            schedule=schedule,
            precision="bf16",
        )
        held.append(Predictor().step(network, cluster, chosen).memory["activations"])
    assert held[0] <= held[1] < 1.1 * held[0]
