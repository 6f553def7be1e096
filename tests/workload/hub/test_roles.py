"""Names of traced layers."""

from __future__ import annotations

import pytest

from paceline.prediction.passes.layer_roles import style
from paceline.workload.hub.roles import block_of, named
from paceline.workload.layers import Layer, Operation

NAMES = (
    ("model.layers.3.self_attn.q_proj", "Linear", "model.layers.3.attention.query"),
    ("model.layers.3.self_attn.q_norm", "Qwen3RMSNorm", "model.layers.3.attention.query_norm"),
    ("model.layers.3.self_attn", "Qwen3Attention", "model.layers.3.attention.mix"),
    ("bert.encoder.layer.0.attention.self.key", "Linear", "bert.encoder.layer.0.attention.key"),
    ("bert.encoder.layer.0.attention.self", "BertSelfAttention", "bert.encoder.layer.0.attention.mix"),
    ("bert.encoder.layer.0.attention.output.dense", "Linear", "bert.encoder.layer.0.attention.project"),
    ("bert.encoder.layer.0.intermediate.dense", "Linear", "bert.encoder.layer.0.expand"),
    ("bert.encoder.layer.0.output.dense", "Linear", "bert.encoder.layer.0.contract"),
    ("model.layers.0.attn.Wqkv", "Linear", "model.layers.0.attention.qkv"),
    ("model.layers.0.mlp.Wo", "Linear", "model.layers.0.contract"),
    ("model.layers.0.encoder_attn.k_proj", "Linear", "model.layers.0.cross.key"),
    ("model.layers.1.mlp.gate_up_proj", "Linear", "model.layers.1.expand"),
    ("model.layers.1.mlp.gate", "DeepseekV3TopkRouter", "model.layers.1.router"),
    ("model.layers.1.mlp.shared_experts.down_proj", "Linear", "model.layers.1.shared.contract"),
    ("model.layers.1.mlp.shared_expert_gate", "Linear", "model.layers.1.shared.scale"),
    ("model.layers.1.experts.expand", "Linear", "model.layers.1.experts.expand"),
    ("model.layers.1.mlp.act_fn", "SiLUActivation", "model.layers.1.act"),
    ("model.layers.2.mlp", "Qwen3MLP", "model.layers.2.multiply"),
    ("model.layers.1", "Block", "model.layers.1"),
    ("model.norm", "RMSNorm", "model.norm"),
)


def layer(name: str, kind: str, outputs: float = 0.0) -> Layer:
    own = (Operation(kind="matmul", backward=False, calls=1, m=4, n=outputs, k=8, batch=1, grows="m"),) if outputs else ()
    return Layer(name=name, kind=kind, operations=own, activation_bytes=0.0)


@pytest.mark.parametrize(("path", "kind", "name"), NAMES, ids=[path for path, *_ in NAMES])
def test_a_part_has_the_name_of_this_package(path: str, kind: str, name: str) -> None:
    assert named([layer(path, kind)], 0) == [name]


def test_the_product_over_the_vocabulary_is_the_head_and_no_two_names_are_equal() -> None:
    given = [layer("decoder", "Linear", 512), layer("b.0.mlp.w1", "Linear", 4), layer("b.0.other.w1", "Linear", 4)]
    names = named(given, 512)
    assert names == ["head.logits", "b.0.gate", "b.0.other.w1"]
    assert style(layer(names[0], "Linear")) == "columns" and given[0].is_logits is False
    assert block_of("a.0.b") == "a.0." and block_of("a.0") == block_of("a") == ""
