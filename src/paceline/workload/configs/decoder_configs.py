"""Dimensions of decoders from their Hugging Face configurations: ``model_type`` to shape and longest sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paceline.workload.builders.attention import SlidingWindow
from paceline.workload.builders.transformer import TransformerShape, llama
from paceline.workload.configs.config_values import TRACE, Config, NotRead, drops, flag, number, refuse, sliding_window

Shaped = tuple[TransformerShape, int]


def llama_like(
    config: Config,
    *,
    kv_heads: int = 0,
    head_dim: int = 0,
    longest: int = 2048,
    tied: bool = False,
    attention_bias: bool = False,
    **changes: Any,
) -> Shaped:
    """Return the design of Llama with some differences.

    Args:
        kv_heads, head_dim, longest, tied: defaults of the architecture; 0: those that the other dimensions give.
        attention_bias: its default, of all four products of attention.
        changes: other fields of the shape.
    """
    hidden, heads = number(config, "hidden_size"), number(config, "num_attention_heads")
    width = number(config, "head_dim", default=head_dim or max(1, hidden // heads))
    biased = flag(config, "attention_bias", attention_bias)
    shape = llama(
        layers=number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=number(config, "num_key_value_heads", default=kv_heads or heads),
        ffn=number(config, "intermediate_size"),
        vocabulary=number(config, "vocab_size"),
    )
    own: dict[str, Any] = {
        "tied": flag(config, "tie_word_embeddings", tied),
        "head_dim": 0 if width * heads == hidden else width,
        "bias": flag(config, "mlp_bias", False),
        "qkv_bias": biased,
        "output_bias": biased,
        "dropout": drops(config, "attention_dropout", "resid_pdrop", "embd_pdrop", "hidden_dropout"),
    }
    return replace(shape, **{**own, **changes}), number(config, "max_position_embeddings", default=longest)


def _llama(config: Config) -> Shaped:
    return llama_like(config, sliding=sliding_window(config))


def mistral(config: Config) -> Shaped:
    """Return Mistral, with a window of 4,096 tokens unless the file says null."""
    window = sliding_window(config, default=4096)
    return llama_like(config, kv_heads=8, longest=131072, sliding=window, qkv_bias=False, output_bias=False)


def qwen_window(config: Config) -> SlidingWindow | None:
    """Return the window of Qwen, which applies from block ``max_window_layers`` on and only with ``use_sliding_window``."""
    if not flag(config, "use_sliding_window", False):
        return None
    if config.get("layer_types") is None and number(config, "max_window_layers", default=28) < number(
        config, "num_hidden_layers"
    ):
        raise NotRead("blocks of a sliding window behind others without one (max_window_layers)", TRACE)
    return sliding_window(config) if config.get("layer_types") else None


def _qwen2(config: Config) -> Shaped:
    return llama_like(config, longest=32768, sliding=qwen_window(config), qkv_bias=True, output_bias=False)


def qwen3(config: Config) -> Shaped:
    """Return Qwen3: heads of 128 numbers, with normalised queries and keys."""
    return llama_like(config, longest=32768, head_dim=128, sliding=qwen_window(config), head_norm=True)


def _gemma(config: Config) -> Shaped:
    return llama_like(config, longest=8192, head_dim=256, tied=True)


def _gemma2(config: Config) -> Shaped:
    window = sliding_window(config, full_every=2, default=4096)
    return llama_like(config, longest=8192, kv_heads=4, head_dim=256, tied=True, output_norm=True, sliding=window)


def _gemma3(config: Config) -> Shaped:
    every = number(config, "sliding_window_pattern", "_sliding_window_pattern", default=6)
    window = sliding_window(config, full_every=every, default=4096)
    return llama_like(
        config, longest=131072, kv_heads=4, head_dim=256, tied=True, output_norm=True, head_norm=True, sliding=window
    )


def _phi(config: Config) -> Shaped:
    refuse(config, qk_layernorm=False)
    return llama_like(config, norm="layer", gated=False, bias=True, parallel=1, head_bias=True, qkv_bias=True, output_bias=True)


def _phi3(config: Config) -> Shaped:
    return llama_like(config, longest=4096, fused_qkv=True, sliding=sliding_window(config))


def _olmo2(config: Config) -> Shaped:
    return llama_like(config, head_norm="whole", input_norm=False, output_norm=True, sliding=sliding_window(config))


def _cohere(config: Config) -> Shaped:
    head_norm = "whole" if flag(config, "use_qk_norm", False) else False
    return llama_like(config, longest=8192, tied=True, norm="layer", norm_bias=False, parallel=1, head_norm=head_norm)


def _starcoder2(config: Config) -> Shaped:
    bias, window = flag(config, "use_bias", True), sliding_window(config)
    own: dict[str, Any] = {"norm": "layer", "gated": False, "bias": bias, "qkv_bias": bias, "output_bias": bias}
    own["dropout"] = drops(config, "attention_dropout", "residual_dropout", "embedding_dropout")
    return llama_like(config, longest=4096, kv_heads=2, tied=True, sliding=window, **own)


def _stablelm(config: Config) -> Shaped:
    refuse(config, qk_layernorm=False)
    parallel = int(flag(config, "use_parallel_residual", False))
    bias = flag(config, "use_qkv_bias", False)
    return llama_like(config, longest=4096, norm="layer", qkv_bias=bias, output_bias=False, parallel=parallel)


def _gpt_neox(config: Config) -> Shaped:
    parallel = 2 if flag(config, "use_parallel_residual", True) else 0
    return llama_like(config, norm="layer", gated=False, fused_qkv=True, bias=True, attention_bias=True, parallel=parallel)


def _gpt(config: Config, **changes: Any) -> Shaped:
    """Return the keys of GPT-2 and GPT-J."""
    hidden, longest = number(config, "n_embd"), number(config, "n_positions", "n_ctx", default=1024)
    shape = TransformerShape(
        layers=number(config, "n_layer"),
        hidden=hidden,
        heads=number(config, "n_head"),
        ffn=number(config, "n_inner", default=4 * hidden),
        vocabulary=number(config, "vocab_size"),
        context=longest,
    )
    return replace(shape, **changes), longest


def _gpt2(config: Config) -> Shaped:
    refuse(config, add_cross_attention=False)
    tied = flag(config, "tie_word_embeddings", True)
    return _gpt(config, tied=tied, dropout=drops(config, "resid_pdrop", "embd_pdrop", "attn_pdrop", default=0.1))


def _gptj(config: Config) -> Shaped:
    refuse(config, tie_word_embeddings=False)
    dropped = drops(config, "resid_pdrop", "embd_pdrop", "attn_pdrop")
    biases: dict[str, Any] = {"qkv_bias": False, "output_bias": False, "head_bias": True}
    shape, _ = _gpt(config, positions="rotary", parallel=1, fused_qkv=False, tied=False, dropout=dropped, **biases)
    return shape, number(config, "n_positions", "n_ctx", default=2048)


def _opt(config: Config) -> Shaped:
    hidden = number(config, "hidden_size")
    refuse(config, word_embed_proj_dim=hidden, do_layer_norm_before=True, enable_bias=True, _remove_final_layer_norm=False)
    refuse(config, layer_norm_elementwise_affine=True)
    longest = number(config, "max_position_embeddings", default=2048)
    shape = TransformerShape(
        layers=number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=number(config, "num_attention_heads"),
        ffn=number(config, "ffn_dim"),
        vocabulary=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        dropout=drops(config, "dropout", default=0.1),
        attention_dropout=drops(config, "attention_dropout", default=0.0),
        context=longest,
        offset=2,
        fused_qkv=False,
    )
    return shape, longest


def _falcon(config: Config) -> Shaped:
    """Return Falcon: 7B shares one head of keys; 40B and 180B (``new_decoder_architecture``) have several and two norms."""
    heads, hidden = number(config, "num_attention_heads", "n_head"), number(config, "hidden_size")
    new, alone = flag(config, "new_decoder_architecture", False), flag(config, "multi_query", True)
    kv_heads = number(config, "num_kv_heads", "n_head_kv", default=heads) if new else 1 if alone else heads
    norms = number(config, "num_ln_in_parallel_attn", default=2) if new else 1
    shape = TransformerShape(
        layers=number(config, "num_hidden_layers", "n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        ffn=number(config, "ffn_hidden_size", default=4 * hidden),
        vocabulary=number(config, "vocab_size"),
        bias=flag(config, "bias", False),
        tied=flag(config, "tie_word_embeddings", True),
        parallel=norms if new or flag(config, "parallel_attn", True) else 0,
        positions="alibi" if flag(config, "alibi", False) else "rotary",
        dropout=drops(config, "hidden_dropout", "attention_dropout"),
    )
    return shape, number(config, "max_position_embeddings", default=2048)


def _bloom(config: Config) -> Shaped:
    hidden = number(config, "hidden_size", "n_embed")
    shape = TransformerShape(
        layers=number(config, "n_layer", "num_hidden_layers"),
        hidden=hidden,
        heads=number(config, "n_head", "num_attention_heads"),
        ffn=number(config, "n_inner", default=4 * hidden),
        vocabulary=number(config, "vocab_size"),
        tied=flag(config, "tie_word_embeddings", True),
        positions="alibi",
        embedding_norm=True,
        dropout=drops(config, "hidden_dropout", "attention_dropout"),
    )
    return shape, number(config, "seq_length", default=2048)  # the scores have no table of positions


def _mpt(config: Config) -> Shaped:
    attention = config.get("attn_config") or {}
    refuse(attention, qk_ln=False, attn_type="multihead_attention")
    hidden, longest = number(config, "d_model"), number(config, "max_seq_len", default=2048)
    refuse(config, no_bias=True)
    if not flag(attention, "alibi", True):
        raise NotRead("an MPT without alibi in the configuration", TRACE)
    shape = TransformerShape(
        layers=number(config, "n_layers"),
        hidden=hidden,
        heads=number(config, "n_heads"),
        ffn=number(config, "expansion_ratio", default=4) * hidden,
        vocabulary=number(config, "vocab_size"),
        bias=False,
        norm_bias=False,
        tied=flag(config, "tie_word_embeddings", True),
        positions="alibi",
        dropout=drops(config, "resid_pdrop", "emb_pdrop"),
    )
    return shape, longest


DECODERS: Mapping[str, Callable[[Config], Shaped]] = MappingProxyType(
    {
        "bloom": _bloom,
        "cohere": _cohere,
        "falcon": _falcon,
        "gemma": _gemma,
        "gemma2": _gemma2,
        "gemma3_text": _gemma3,
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "gptj": _gptj,
        "granite": _llama,
        "llama": _llama,
        "mistral": mistral,
        "mpt": _mpt,
        "olmo2": _olmo2,
        "opt": _opt,
        "phi": _phi,
        "phi3": _phi3,
        "qwen2": _qwen2,
        "qwen3": qwen3,
        "stablelm": _stablelm,
        "starcoder2": _starcoder2,
    }
)
