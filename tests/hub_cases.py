"""Small configurations of kinds of models that no hand-written table describes."""

from __future__ import annotations

from typing import Any

from config_cases import DEEPSEEK, LLAMA

BASE: dict[str, Any] = {**LLAMA, "num_hidden_layers": 4}
PAIR: dict[str, Any] = {"d_model": 96, "vocab_size": 211} | {
    f"{part}_{key}": value
    for part in ("encoder", "decoder")
    for key, value in (("layers", 3), ("attention_heads", 6), ("ffn_dim", 136))
}
SEEN: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 14,
}
SEEN |= {"image_size": 28}
READ: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 211,
}
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
    "mbart": {**PAIR, "max_position_embeddings": 64, "dropout": 0.0},
    "lfm2": {**BASE, "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8},
    "convnext": {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "image_size": 64},
}
DIFFUSION: dict[str, dict[str, Any]] = {
    "FluxTransformer2DModel": {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [4, 6, 6],
    },
    "UNet2DConditionModel": {
        "sample_size": 16,
        "block_out_channels": [32, 64],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "cross_attention_dim": 32,
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": 4,
    },
}
