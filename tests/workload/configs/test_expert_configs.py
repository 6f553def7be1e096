"""Experts from configurations: routed, shared, and blocks without any."""

from __future__ import annotations

from config_cases import DEEPSEEK, EXPERTS, LLAMA
from paceline.workload.configs.expert_configs import EXPERT_DECODERS


def test_deepseek_has_shared_experts_and_dense_blocks_first() -> None:
    shape, _ = EXPERT_DECODERS["deepseek_v3"]({**LLAMA, **DEEPSEEK, "model_type": "deepseek_v3"})
    experts, latent = shape.experts, shape.latent
    assert experts is not None and (experts.count, experts.active, experts.shared, experts.first) == (6, 2, 80, 1)
    assert latent is not None and (latent.q_rank, latent.kv_rank, latent.value) == (24, 16, 20)
    assert (experts.groups, experts.limited) == (1, 1)
    grouped, _ = EXPERT_DECODERS["deepseek_v3"]({**LLAMA, **DEEPSEEK, "n_group": None, "topk_group": None})
    assert grouped.experts is not None and (grouped.experts.groups, grouped.experts.limited) == (8, 4)
    whole = {**LLAMA, **DEEPSEEK, "q_lora_rank": None, "first_k_dense_replace": 0, "n_shared_experts": None}
    bare, _ = EXPERT_DECODERS["deepseek_v2"]({**whole, "model_type": "deepseek_v2"})
    assert bare.latent is not None and bare.latent.q_rank == 0
    assert bare.experts is not None and (bare.experts.first, bare.experts.shared) == (0, 0)


def test_the_shared_expert_of_qwen_is_scaled() -> None:
    config = {**LLAMA, **EXPERTS, "shared_expert_intermediate_size": 72}
    shape, _ = EXPERT_DECODERS["qwen2_moe"](config)
    assert shape.experts is not None and shape.experts.scaled and shape.experts.shared == 72
    later, _ = EXPERT_DECODERS["qwen3_moe"]({**LLAMA, **EXPERTS, "decoder_sparse_step": 2})
    assert later.experts is not None and not later.experts.scaled and later.experts.every == 2 and later.head_dim == 64
