"""Facts without a cost: those of configurations are read, those of published names agree with the families' files."""

from __future__ import annotations

import pytest

from paceline import Workload
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.details import ACTIVATIONS, FAMILIES, Details, config_details, published_details


def test_the_details_of_configurations_are_read_in_both_spellings() -> None:
    old = {"hidden_act": "silu", "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
    new = {"hidden_act": "silu", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}, "rms_norm_eps": 1e-5}
    llama = published_details("llama-3-8b")
    assert (
        config_details(old)
        == config_details(new)
        == llama
        == Details(activation="silu", rotary_base=500_000, norm_epsilon=1e-5)
    )
    assert config_details({"activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}) == published_details("gpt2")
    assert config_details({"hidden_act": "new", "rope_theta": "x", "rope_parameters": {"full": {"rope_theta": 1}}}) == Details()


def test_every_family_names_a_published_network_and_the_longest_name_counts() -> None:
    for family, details in FAMILIES.items():
        assert any(name == family or name.startswith(f"{family}-") for name in SHAPES), family
        assert details.activation in ACTIVATIONS.values()
    assert published_details("llama-2-34b") != published_details("llama-2-13b")
    assert published_details("chatglm3-6b") is None


def test_details_cost_nothing() -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128,
        "vocab_size": 100,
    }  # fmt: skip
    plain, told = (Workload.from_config(config | more, 32) for more in ({}, {"rope_theta": 5e5, "hidden_act": "silu"}))
    assert plain == told and plain.shape.details != told.shape.details
    assert plain.flops_per_sample == pytest.approx(told.flops_per_sample, rel=0)
