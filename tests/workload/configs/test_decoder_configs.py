"""What tells decoders apart: norms, biases, windows and positions. Their parameters are those of test_huggingface.py."""

from __future__ import annotations

from typing import Any

import pytest

from config_cases import LLAMA
from paceline.errors import UserError
from paceline.workload.builders.attention import SlidingWindow
from paceline.workload.configs.decoder_configs import DECODERS


@pytest.mark.parametrize(
    ("kind", "given", "shape"),
    [
        ("mistral", {}, {"sliding": SlidingWindow(4096), "kv_heads": 2}),
        ("mistral", {"sliding_window": None}, {"sliding": None}),
        ("qwen2", {"sliding_window": 32}, {"sliding": None, "qkv_bias": True, "output_bias": False}),
        ("gemma2", {}, {"sliding": SlidingWindow(4096, 2), "output_norm": True, "head_dim": 256, "tied": True}),
        ("gemma3_text", {}, {"sliding": SlidingWindow(4096, 6), "head_norm": True}),
        ("phi", {}, {"parallel": 1, "head_bias": True, "gated": False}),
        ("gpt_neox", {}, {"parallel": 2, "fused_qkv": True, "positions": "rotary"}),
        ("gpt_neox", {"use_parallel_residual": False}, {"parallel": 0}),
        ("olmo2", {}, {"input_norm": False, "output_norm": True, "head_norm": "whole"}),
        ("cohere", {}, {"norm_bias": False, "parallel": 1}),
        ("llama", {"attention_dropout": 0.1}, {"dropout": True}),
    ],
)
def test_a_kind_has_its_own_design(kind: str, given: dict[str, Any], shape: dict[str, Any]) -> None:
    own, _ = DECODERS[kind]({"model_type": kind, **LLAMA, **given})
    assert {name: getattr(own, name) for name in shape} == shape


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("phi", {"qk_layernorm": True}, "qk_layernorm True"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "max_window_layers"),
        ("gpt2", {"n_embd": 8, "n_layer": 1, "n_head": 2, "add_cross_attention": True}, "add_cross_attention True"),
        ("mpt", {"d_model": 8, "n_heads": 2, "n_layers": 1, "attn_config": {"alibi": False}}, "without alibi"),
    ],
)
def test_what_a_table_cannot_say_is_refused(kind: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"{words}.*; trace the module"):
        DECODERS[kind]({"model_type": kind, **LLAMA, **given})
