"""Dimensions of mixtures of experts from their Hugging Face configurations: ``model_type`` to shape and longest sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from paceline.workload.builders.experts import Experts
from paceline.workload.builders.latent_attention import LatentAttention
from paceline.workload.configs.config_values import Config, flag, number, refuse, sliding_window
from paceline.workload.configs.decoder_configs import Shaped, llama_like, qwen3, qwen_window
from paceline.workload.configs.hybrid_configs import further_tokens


def _mixtral(config: Config) -> Shaped:
    experts = Experts(
        count=number(config, "num_local_experts"),
        active=number(config, "num_experts_per_tok"),
        ffn=number(config, "intermediate_size"),
    )
    return llama_like(config, kv_heads=8, longest=131072, experts=experts, sliding=sliding_window(config))


def _qwen_experts(config: Config, shared: int) -> Experts:
    refuse(config, mlp_only_layers=[])
    return Experts(
        count=number(config, "num_experts", "num_local_experts"),
        active=number(config, "num_experts_per_tok"),
        ffn=number(config, "moe_intermediate_size"),
        shared=shared,
        scaled=shared > 0,
        every=number(config, "decoder_sparse_step", default=1),
    )


def _qwen2_moe(config: Config) -> Shaped:
    experts = _qwen_experts(config, number(config, "shared_expert_intermediate_size"))
    bias, window = flag(config, "qkv_bias", True), qwen_window(config)
    return llama_like(config, longest=32768, experts=experts, sliding=window, qkv_bias=bias, output_bias=False)


def _qwen3_moe(config: Config) -> Shaped:
    shape, longest = qwen3({"head_dim": 64, **config} if not config.get("head_dim") else config)
    return replace(shape, experts=_qwen_experts(config, 0)), longest


def _gpt_oss(config: Config) -> Shaped:
    shape, longest = _mixtral(config)
    width, bias = number(config, "head_dim", default=64), flag(config, "attention_bias", True)
    window = sliding_window(config, full_every=2, default=128)
    own = replace(shape, head_dim=width, sinks=True, sliding=window, bias=True, qkv_bias=bias, output_bias=bias)
    return own, longest


def _deepseek(config: Config) -> Shaped:
    """Return DeepSeek, with the modules that predict further tokens if the file counts them."""
    refuse(config, moe_layer_freq=1, attention_bias=False)
    width, second = number(config, "moe_intermediate_size"), config.get("model_type") == "deepseek_v2"
    first = config.get("first_k_dense_replace")
    experts = Experts(
        count=number(config, "n_routed_experts"),
        active=number(config, "num_experts_per_tok"),
        ffn=width,
        shared=width * (config["n_shared_experts"] or 0 if "n_shared_experts" in config else 2 if second else 1),
        first=number(config, "first_k_dense_replace", default=0 if second else 3) if first != 0 else 0,
    )
    if groups := number(config, "n_group", default=1 if second else 8):
        experts = replace(experts, groups=groups, limited=number(config, "topk_group", default=1 if second else 4))
    rank = config.get("q_lora_rank", 1536)  # null: queries come from the token itself
    latent = LatentAttention(
        q_rank=rank or 0,
        kv_rank=number(config, "kv_lora_rank", default=512),
        nope=number(config, "qk_nope_head_dim", default=128),
        rope=number(config, "qk_rope_head_dim", default=64),
        value=number(config, "v_head_dim", default=128),
    )
    shape, longest = llama_like({**config, "head_dim": None}, longest=2048 if second else 4096)
    return further_tokens(config, replace(shape, head_dim=0, experts=experts, latent=latent), ("*E",)), longest


EXPERT_DECODERS: Mapping[str, Callable[[Config], Shaped]] = MappingProxyType(
    {
        "deepseek_v2": _deepseek,
        "deepseek_v3": _deepseek,
        "gpt_oss": _gpt_oss,
        "kimi_k2": _deepseek,
        "mixtral": _mixtral,
        "qwen2_moe": _qwen2_moe,
        "qwen3_moe": _qwen3_moe,
    }
)
