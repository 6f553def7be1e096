"""Hybrids: blocks by letters, experts with a latent vector, and modules for further tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import UserError
from paceline.prediction.mesh.stages import stages
from paceline.workload import Experts, TransformerShape, Workload
from paceline.workload.builders.hybrid import ExtraTokens, Hybrid
from paceline.workload.builders.state_space import Mamba2
from paceline.workload.builders.transformer import llama

MIXER = Mamba2(heads=4, head_dim=8, state=16, chunk=16)
SHAPE = llama(4, 32, 4, 2, 48, 100)
EXPERTS = Experts(count=6, active=2, ffn=24)


def hybrid(*pattern: str, **changes: Any) -> TransformerShape:
    return replace(SHAPE, hybrid=Hybrid(mixer=MIXER, pattern=pattern), **changes)


def names(shape: TransformerShape, block: int) -> set[str]:
    table = Workload.from_shape(shape, 32)
    return {layer.name.split(".")[2] for layer in table.layers if layer.name.startswith(f"blocks.{block}.")}


def test_blocks_have_the_parts_of_their_letters() -> None:
    shape = hybrid("M", "*", "-", "ME", experts=EXPERTS)
    assert {"mixer_norm", "mixer", "mixer_sum"} == names(shape, 0)
    assert {"attention_norm", "attention", "attention_sum"} == names(shape, 1)
    assert "mixer" not in names(shape, 2) and "expand" in names(shape, 2)
    assert {"mixer", "experts", "router"} <= names(shape, 3)
    assert {"mixer", "attention", "expand"} <= names(hybrid("M*-"), 0)


def test_a_network_of_attention_and_feed_forward_letters_is_the_transformer() -> None:
    plain, lettered = Workload.from_shape(SHAPE, 32, name="a"), Workload.from_shape(hybrid("*-"), 32, name="a")
    assert plain == lettered
    assert sum(p.size for p in Workload.from_shape(hybrid("*", "-", layers=8), 32).parameters) == plain.num_parameters


def test_stages_of_single_parts_pass_the_hidden_state_on() -> None:
    shape = hybrid("M", "E", "*", "E", experts=replace(EXPERTS, shared=40, latent=16))
    workload = Workload.from_shape(shape, 32)
    parts = stages(workload, 4, 1)
    assert sum(stage.workload.num_parameters for stage in parts) == workload.num_parameters


def test_latent_experts_cost_less_by_the_width_and_two_products_more() -> None:
    plain, latent = (
        Workload.from_shape(hybrid("E", experts=replace(EXPERTS, latent=width)), 32).num_parameters for width in (0, 8)
    )
    assert plain - latent == 4 * (6 * 3 * 24 * (32 - 8) - 2 * 32 * 8)


def test_further_tokens_add_a_product_blocks_norms_and_a_loss() -> None:
    once, twice, repeated = (
        Workload.from_shape(replace(SHAPE, extra_tokens=extra), 32, name="a")
        for extra in (ExtraTokens(1, ("*-",)), ExtraTokens(2, ("*-",)), ExtraTokens(2, ("*-",), repeated=True))
    )
    plain = Workload.from_shape(SHAPE, 32, name="a")
    block = sum(p.size for p in plain.parameters if p.name.startswith("blocks.0."))
    assert once.num_parameters - plain.num_parameters == block + 2 * 32 * 32 + 3 * 32
    assert twice.num_parameters - once.num_parameters == once.num_parameters - plain.num_parameters
    assert repeated.num_parameters == once.num_parameters and repeated.flops_forward == twice.flops_forward
    assert sum(layer.is_logits for layer in twice.layers) == 3
    assert len(stages(twice, 4, 1)) == 4  # the modules are no blocks, and stay on the last stage


@pytest.mark.parametrize("pattern", [(), ("X",), ("-*",)])
def test_unknown_blocks_are_refused(pattern: tuple[str, ...]) -> None:
    with pytest.raises(UserError):
        Hybrid(mixer=MIXER, pattern=pattern)
    with pytest.raises(UserError):
        ExtraTokens(0 if not pattern else 1, pattern)
