"""Networks that run forward alone: no backward passes, no adapters, and logits of a part of the tokens."""

from __future__ import annotations

import pytest

from paceline.prediction.tasks.forward_only import forward_only, is_adapted, with_logits
from paceline.workload import Workload

NETWORK = Workload.named("llama-3-8b", 512)


def test_a_reference_has_the_forward_flops_and_frozen_weights() -> None:
    alone = forward_only(NETWORK)
    assert alone.flops_per_sample == pytest.approx(NETWORK.flops_forward)
    assert (alone.num_parameters, alone.frozen) == (0, NETWORK.num_parameters)
    assert alone.activation_bytes == 0


@pytest.mark.parametrize("lora", ["r=16", "r=64,targets=all-linear", "r=8,targets=all-linear,dropout=0.1"])
def test_without_adapters_the_network_is_as_before(lora: str) -> None:
    adapted = NETWORK.with_lora(lora)
    assert is_adapted(adapted) and not is_adapted(NETWORK)
    base, without, whole = forward_only(NETWORK), forward_only(adapted, adapted=False), forward_only(adapted)
    for before, layer in zip(base.layers, without.layers, strict=True):
        assert layer.operations == before.operations, layer.name
    assert whole.flops_forward > without.flops_forward


def test_logits_of_a_quarter_of_the_tokens() -> None:
    part = with_logits(NETWORK, 0.25)
    logits = next(layer for layer in NETWORK.layers if layer.is_logits)
    less = next(layer for layer in part.layers if layer.is_logits)
    assert less.flops_forward == pytest.approx(logits.flops_forward / 4)
    assert NETWORK.flops_per_sample - part.flops_per_sample == pytest.approx(
        0.75 * (logits.flops_forward + logits.flops_backward), rel=1e-3
    )
    assert with_logits(NETWORK, 1.0) is NETWORK
