"""The network as settings of Megatron-Core: fields of ``TransformerConfig`` and of its GPT model, by their names there.

``megatron/core/transformer/transformer_config.py``, ``megatron/training/arguments.py`` (``_add_network_size_args``,
``_add_moe_args``, ``_add_mla_args``).
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.planning.emit.job import EmittedJob
from paceline.workload.builders.transformer import TransformerShape
from paceline.workload.details import Details

Settings = dict[str, object]
POSITIONS: Mapping[str, str] = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
"""Megatron-Core's names of position embeddings."""
_GATED = ("silu",)
_UNGATED = ("gelu", "relu2")
"""Activations that Megatron-LM's arguments name."""


def shape_of(job: EmittedJob) -> TransformerShape | None:
    """Return the dimensions of the network; None if they are not known."""
    shape = job.workload.shape
    return shape if isinstance(shape, TransformerShape) else None


def model_settings(job: EmittedJob) -> Settings:
    """Return the settings of the network without defaults of other networks; empty if its dimensions are not known."""
    shape = shape_of(job)
    if shape is None:
        return {}
    details = shape.details or Details()
    settings: Settings = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn or 4 * shape.hidden,
        "num_attention_heads": shape.heads,
    }
    if shape.kv_heads and shape.kv_heads != shape.heads:
        settings["num_query_groups"] = shape.kv_heads
    if shape.head_dim:
        settings["kv_channels"] = shape.head_dim
    settings |= {
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": max(job.tokens, shape.context),
        "position_embedding_type": POSITIONS.get(shape.positions, "rope"),
    }
    if shape.positions == "rotary" and details.rotary_base:
        settings["rotary_base"] = int(details.rotary_base)
    settings["normalization"] = "RMSNorm" if shape.norm == "rms" else "LayerNorm"
    if details.norm_epsilon:
        settings["layernorm_epsilon"] = details.norm_epsilon
    qkv_bias = shape.bias if shape.qkv_bias is None else shape.qkv_bias
    settings |= {
        "gated_linear_unit": shape.gated,
        "activation_func": details.activation or ("silu" if shape.gated else "gelu"),
        "add_bias_linear": shape.bias,
        "add_qkv_bias": qkv_bias and not shape.bias,
        "qk_layernorm": bool(shape.head_norm),
        "attention_output_gate": shape.output_gate,
        "share_embeddings_and_output_weights": shape.tied,
        "hidden_dropout": 0.1 if shape.dropout else 0.0,
        "attention_dropout": 0.1 if shape.drops_weights else 0.0,
    }
    if shape.sinks:
        settings["softmax_type"] = "learnable"
    if shape.sliding is not None:
        settings["window_size"] = (shape.sliding.tokens - 1, 0)
        if shape.sliding.full_every:
            settings["window_attn_skip_freq"] = shape.sliding.full_every
    return settings | _experts(shape) | _latent(shape) | _further(shape)


def _experts(shape: TransformerShape) -> Settings:
    experts = shape.experts
    if experts is None:
        return {}
    settings: Settings = {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.active,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
    }
    if experts.shared:
        settings["moe_shared_expert_intermediate_size"] = experts.shared
    if experts.groups > 1:
        settings |= {"moe_router_num_groups": experts.groups, "moe_router_group_topk": experts.limited}
    pattern = [int(experts.of_block(number)) for number in range(shape.layers)]
    if not all(pattern):
        first = pattern.index(1)
        if all(pattern[first:]):
            settings["moe_layer_freq"] = f"([0]*{first}+[1]*{shape.layers - first})"
        else:
            settings["moe_layer_freq"] = "[" + ",".join(map(str, pattern)) + "]"
    return settings


def _latent(shape: TransformerShape) -> Settings:
    latent = shape.latent
    if latent is None:
        return {}
    ranks: Settings = {"q_lora_rank": latent.q_rank} if latent.q_rank else {}
    return {
        "multi_latent_attention": True,
        **ranks,
        "kv_lora_rank": latent.kv_rank,
        "qk_head_dim": latent.nope,
        "qk_pos_emb_head_dim": latent.rope,
        "v_head_dim": latent.value,
    }


def _further(shape: TransformerShape) -> Settings:
    return {"mtp_num_layers": shape.extra_tokens.count} if shape.extra_tokens else {}


def unstated(job: EmittedJob) -> str:
    """Return a sentence about what the settings do not say of the network; empty if they say all."""
    shape = shape_of(job)
    if shape is None:
        return "The dimensions of the network are not known here: add its arguments."
    details = shape.details or Details()
    named = _GATED if shape.gated else _UNGATED
    missing = [
        what
        for what, lacks in (
            ("the activation (an assumption)", details.activation == ""),
            (f"the activation {details.activation}", details.activation not in ("", *named)),
            ("the base of the rotation", shape.positions == "rotary" and not details.rotary_base),
            (f"{shape.positions} positions", shape.positions not in POSITIONS),
            ("norms of queries and keys over all heads", shape.head_norm == "whole"),
            ("parallel attention and feed-forward network", shape.parallel > 0),
            ("norms behind the sums", shape.post_norm or shape.output_norm),
            ("weights that all blocks share", shape.shared_blocks),
            ("the norm of the embedding", shape.embedding_norm),
            ("the narrow embedding", bool(shape.embedding_width)),
            ("the head", shape.head != "tokens" or shape.head_bias),
        )
        if lacks
    ]
    return f"Not stated of the network: {', '.join(missing)}." if missing else ""
