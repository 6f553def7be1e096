"""Models that transformers builds: as the hand-written tables of the same kind, and as its own modules without shortcuts."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

import paceline
from config_cases import CASES, DEEPSEEK, LLAMA
from paceline.errors import UserError
from paceline.workload import Workload
from paceline.workload.configs.huggingface import table_of
from paceline.workload.hub.networks import hub_table

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers: pip install transformers")
# ties, scores in memory, inputs of several kinds, a loop over the sequence
UNLIKE = ("bart", "t5", "whisper", "albert", "rwkv", "kimi_k2", "vit", "deit", "bloom", "mpt")
TOKENS = 48
BASE = {**LLAMA, "num_hidden_layers": 4}


def traced(settings: dict[str, Any], tokens: int | None = TOKENS) -> Any:
    return hub_table(settings, "transformers", tokens, name="net", source="test")


@pytest.mark.everyday("llama", "qwen3_moe", "qwen3_next", others="full")
@pytest.mark.parametrize("kind", sorted({kind for kind, *_ in CASES} - set(UNLIKE)))
def test_parameters_and_flops_are_those_of_the_tables_by_hand(kind: str) -> None:
    given = next({"model_type": kind, **given} for name, given, _ in CASES if name == kind)
    theirs, own = traced(given), table_of(given, TOKENS, name="net")
    assert theirs.num_parameters == own.num_parameters
    assert theirs.flops_forward == pytest.approx(own.flops_forward, rel=1e-9)
    assert theirs.flops_per_sample == pytest.approx(own.flops_per_sample, rel=1e-9)
    assert theirs.coverage.share == 1


SEEN = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "patch_size": 14}
SEEN |= {"image_size": 28}
READ = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 211}
READ |= {"max_position_embeddings": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "smollm3": BASE,
    "olmo3": {**BASE, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16},
    "ernie4_5_moe": {**BASE, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40},
    "glm4_moe": {**BASE, **DEEPSEEK},
    "minimax_m2": {**BASE, "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16},
    "llama4_text": {**BASE, "num_local_experts": 4, "intermediate_size_mlp": 136, "head_dim": 16},
    "qwen3_5_text": {**BASE, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "head_dim": 32},
    "modernbert": {**BASE, "pad_token_id": 0, "cls_token_id": 3, "sep_token_id": 4},
    "deberta-v2": {**BASE, "pad_token_id": 0},
    "esm": {**BASE, "pad_token_id": 1, "mask_token_id": 5},
    "swin": {"image_size": 64, "embed_dim": 24, "depths": [1, 3], "num_heads": [2, 4], "window_size": 4, "patch_size": 4},
    "dinov2": {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "image_size": 56, "patch_size": 14},
    "dinov3_vit": {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "image_size": 64, "patch_size": 16},
    "clip": {"text_config": READ, "vision_config": SEEN},
    "siglip": {"text_config": READ, "vision_config": SEEN},
    "llava": {"text_config": {"model_type": "llama", **BASE}, "vision_config": {"model_type": "clip_vision_model", **SEEN}},
    "gemma3": {"text_config": BASE, "vision_config": SEEN, "mm_tokens_per_image": 1},
    "mllama": {"text_config": {**BASE, "cross_attention_layers": [1]}, "vision_config": {**SEEN, "attention_heads": 4}},
    "mistral3": {"text_config": {"model_type": "mistral", **BASE}, "vision_config": {"model_type": "pixtral", **SEEN}},
    "qwen2_5_vl": {
        "text_config": {**BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}},
        "vision_config": {"depth": 3, "hidden_size": 32, "num_heads": 4, "out_hidden_size": 96},
    },
    "wav2vec2": {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_conv_pos_embedding_groups": 8},
}


@pytest.mark.everyday("ernie4_5_moe", others="full")
@pytest.mark.parametrize("kind", CONFIGS)
def test_other_kinds_have_the_parameters_of_their_module(kind: str) -> None:
    from paceline.workload.hub.library import built

    given = {"model_type": kind, **CONFIGS[kind]}
    module, _ = built(given, "transformers")
    long = "vocab_size" in given or kind in ("llava", "gemma3", "mllama", "mistral3", "qwen2_5_vl")
    table = Workload.from_config(given, TOKENS if long else None)
    assert table.num_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert table.coverage.share > 0.98 and table.counts_half


def test_roles_divide_a_model_that_no_table_describes() -> None:
    given = {"model_type": "ernie4_5_moe", **CONFIGS["ernie4_5_moe"]}
    table = Workload.from_config(given, TOKENS)
    assert table.with_lora("r=4,targets=q_proj").num_parameters == 4 * 4 * (96 + 96)
    names = {layer.name for layer in table.layers}
    assert {"model.layers.3.router", "model.layers.3.dispatch", "model.layers.3.experts.gate", "head.logits"} <= names


def test_a_division_takes_as_long_as_that_of_the_table_by_hand() -> None:
    given = {"model_type": "qwen3", **BASE, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    pair = [Workload.of(traced(given, 1024)), Workload.of(table_of(given, 1024, name="net"))]
    for choices in ({"recompute": "full"}, {"tensor": 2, "sequence": True, "pipeline": 2, "grad_accum_steps": 4}):
        steps = [
            paceline.predict(w, "8 A100", precision="bf16", global_batch_size=32, **choices).step_time_s  # type: ignore[arg-type]
            for w in pair
        ]
        assert steps[0] == pytest.approx(steps[1], rel=0.02)


def test_a_length_of_a_model_without_sequences_is_refused() -> None:
    with pytest.raises(UserError, match="no sequence length to choose"):
        traced({"model_type": "dinov2", **CONFIGS["dinov2"]}, 64)
