"""Optimizer state on a device: paged state, gradients of an update in the backward pass, and temporaries of an update."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.hardware import Cluster
from paceline.hardware.catalogue import link
from paceline.prediction import Predictor
from paceline.prediction.answer.result import Prediction
from paceline.prediction.step.memory import usable_bytes
from paceline.prediction.step.optimizer_state import PAGE, paged_out
from paceline.strategy import Strategy
from paceline.workload import Workload

CARD = Cluster.named("RTX 4090")
NET = Workload.named("gpt2-xl")
P = NET.num_parameters


def predicted(**choices: Any) -> Prediction:
    usual: dict[str, Any] = {"world_size": 1, "global_batch_size": 1, "precision": "bf16", "recompute": "full"}
    return Predictor().step(NET, CARD, Strategy.of(**{**usual, **choices}))


def test_paged_state_leaves_a_full_device_and_moves_in_every_step() -> None:
    paged, whole = predicted(optimizer="paged_adamw"), predicted(optimizer="adamw", update="fused")
    evicted = whole.memory_bytes - paged.memory_bytes
    assert whole.fit == "does not fit" and paged.fits
    assert 0 <= usable_bytes(CARD.device) - paged.memory_bytes < PAGE
    assert whole.memory["optimizer state"] == 8 * P and paged.memory["optimizer state"] == pytest.approx(8 * P - evicted)
    moved_s = 2 * evicted / Predictor().constants.bandwidth(link(CARD.device.host_link))
    assert paged.step_time_s - whole.step_time_s == pytest.approx(moved_s, rel=0.05)


def test_paged_state_that_fits_stays() -> None:
    paged, eight = (predicted(optimizer=name, stored_weights="bf16") for name in ("paged_adamw_8bit", "adamw_8bit"))
    assert (paged.memory_bytes, paged.step_time_s) == (eight.memory_bytes, eight.step_time_s)
    strategy = Strategy.of(world_size=1, global_batch_size=1, optimizer="paged_adamw")
    assert [paged_out(n * PAGE, 10.0 * PAGE, strategy, 100.0 * PAGE) for n in (90, 104.5, 200)] == [0, 5 * PAGE, 10 * PAGE]


def test_many_at_once_page_as_one_does() -> None:
    strategies = [
        Strategy.of(world_size=1, global_batch_size=batch, precision="bf16", optimizer="paged_adamw", recompute=again)
        for batch in (1, 2, 16)
        for again in (False, True)
    ]
    many = Predictor().many(NET, [(CARD, strategy) for strategy in strategies])
    for index, strategy in enumerate(strategies):
        one = Predictor().step(NET, CARD, strategy)
        assert many.memory_bytes[index] == pytest.approx(one.memory_bytes, rel=1e-12)
        assert many.step_s[index] == pytest.approx(one.step_time_s, rel=1e-9)
        assert many.fits[index] == (one.fit == "fits")


def test_an_update_in_the_backward_pass_holds_the_gradient_of_the_largest_tensor() -> None:
    largest = max(p.size for p in NET.parameters)
    usual = predicted(optimizer="sgd", update="looped").memory
    within = predicted(optimizer="sgd", update="in_backward").memory
    assert (usual["gradients"], within["gradients"]) == (4 * P, 4 * largest)
    assert predicted(optimizer="sgd", update="in_backward", stored_weights="bf16").memory["gradients"] == 2 * largest


def test_weights_in_bf16_have_no_copies() -> None:
    """Bytes a parameter: weights, gradients and two moments in bf16, and another value of Kahan's sums."""
    fixed = ("weights", "gradients", "optimizer state", "rounding errors")
    of = {
        stored: sum(predicted(optimizer="adamw", stored_weights=stored).memory.get(name, 0.0) for name in fixed) / P
        for stored in ("", "bf16", "bf16_stochastic", "bf16_kahan")
    }
    assert of == {"": 18, "bf16": 8, "bf16_stochastic": 8, "bf16_kahan": 10}


def test_a_fused_update_has_no_temporaries_and_many_tensors_at_once_have_their_roots() -> None:
    of = {way: predicted(optimizer="adamw", update=way, stored_weights="bf16").memory.get("update", 0.0) for way in _WAYS}
    assert of["fused"] == of["looped"] == 0 < of["foreach"] <= 2 * P
    usual, named = (predicted(optimizer="adamw", update=way).memory["update"] for way in ("", "foreach"))
    assert usual == named


_WAYS = ("fused", "looped", "foreach")


def test_a_trainer_keeps_the_state_of_embeddings_in_32_bits_next_to_an_8_bit_optimizer() -> None:
    tables = [p.size for p in NET.parameters if NET.layers[p.layer].kind == "Embedding"]
    strategy = Strategy.of(world_size=1, global_batch_size=1, precision="bf16", optimizer="adamw_8bit")
    eight, wide = (
        Predictor().changed(framework=name).step(NET, CARD, strategy).memory["optimizer state"]
        for name in ("ordinary", "hf-trainer")
    )
    assert wide - eight == sum(2 * (4 * n - n - 4 * -(-n // 256)) for n in tables) > 0
