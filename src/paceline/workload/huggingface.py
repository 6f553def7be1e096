"""Dimensions of transformers from Hugging Face configurations, with the keys of ``transformers`` 4 and 5."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline.errors import UserError, unknown
from paceline.workload.attention import SlidingWindow
from paceline.workload.experts import Experts
from paceline.workload.latent_attention import LatentAttention
from paceline.workload.transformer import TransformerShape, llama

Config = Mapping[str, Any]
_FULL = "full_attention"


def shape_of(config: Config) -> tuple[TransformerShape, int]:
    """The dimensions of a configuration, and its longest sequence.

    Raises:
        UserError: an unknown kind of model, a missing dimension, or one that the layer table cannot express.
    """
    kind = str(config.get("model_type", ""))
    if kind not in _KINDS:
        raise unknown("model_type", kind, sorted(_KINDS), "for another network, Workload.trace its module")
    return _KINDS[kind](config)


def _number(config: Config, *names: str) -> int:
    """The value of the first of ``names`` in the configuration, a whole number from 1 up."""
    for name in names:
        value = config.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise UserError(f"{name} {value!r} in the configuration", "it is a whole number from 1 up")
            return value
    raise UserError(f"the configuration has no {names[0]}", "give a whole config.json")


def _refuse(config: Config, plain: Mapping[str, Any]) -> None:
    """Refuse settings for which the layer table would differ from that of this kind of model."""
    for name, usual in plain.items():
        if config.get(name, usual) not in (usual, None):
            raise UserError(f"{name} {config[name]!r} in the configuration is not known here", "Workload.trace the module")


def _llama(config: Config) -> tuple[TransformerShape, int]:
    _refuse(config, {"attention_bias": False, "mlp_bias": False})
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    own = config.get("head_dim") is not None and config["head_dim"] != hidden // heads
    shape = llama(
        layers=_number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", "num_attention_heads"),
        ffn=_number(config, "intermediate_size"),
        vocabulary=_number(config, "vocab_size"),
    )
    tied, width = bool(config.get("tie_word_embeddings", False)), _number(config, "head_dim") if own else 0
    return replace(shape, tied=tied, head_dim=width, sliding=_sliding(config)), _number(config, "max_position_embeddings")


def _sliding(config: Config, full_every: int = 0) -> SlidingWindow | None:
    """Which blocks attend to the nearest tokens alone.

    Args:
        full_every: every how many blocks one attends to all, where ``layer_types`` does not say it.
    """
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return None
    tokens, kinds = _number(config, "sliding_window"), list(config.get("layer_types") or ())
    if kinds:
        full_every = kinds.index(_FULL) + 1 if _FULL in kinds else 0
        if full_every == 1 and set(kinds) == {_FULL}:
            return None
    window = SlidingWindow(tokens, full_every)
    if any((kind == _FULL) == bool(window.of_block(i)) for i, kind in enumerate(kinds)):
        raise UserError("blocks of a sliding window that follow no period in layer_types", "Workload.trace the module")
    return window


def _qwen3(config: Config) -> tuple[TransformerShape, int]:
    shape, longest = _llama(config)
    return replace(shape, head_dim=_number(config, "head_dim"), head_norm=True), longest


def _qwen3_moe(config: Config) -> tuple[TransformerShape, int]:
    _refuse(config, {"mlp_only_layers": []})
    shape, longest = _qwen3(config)
    experts = Experts(
        count=_number(config, "num_experts"),
        active=_number(config, "num_experts_per_tok"),
        ffn=_number(config, "moe_intermediate_size"),
        every=config.get("decoder_sparse_step", 1),
    )
    return replace(shape, experts=experts), longest


def _mixtral(config: Config) -> tuple[TransformerShape, int]:
    shape, longest = _llama(config)
    experts = Experts(
        count=_number(config, "num_local_experts"),
        active=_number(config, "num_experts_per_tok"),
        ffn=_number(config, "intermediate_size"),
    )
    return replace(shape, experts=experts), longest


def _gpt_oss(config: Config) -> tuple[TransformerShape, int]:
    shape, longest = _mixtral({**config, "attention_bias": False})
    head_dim, bias = _number(config, "head_dim"), bool(config.get("attention_bias", True))
    return replace(shape, head_dim=head_dim, bias=bias, sliding=_sliding(config, full_every=2)), longest


def _deepseek(config: Config) -> tuple[TransformerShape, int]:
    """The heads that predict further tokens are left out."""
    _refuse(config, {"moe_layer_freq": 1})
    shape, longest = _llama({**config, "head_dim": None})
    width = _number(config, "moe_intermediate_size")
    experts = Experts(
        count=_number(config, "n_routed_experts"),
        active=_number(config, "num_experts_per_tok"),
        ffn=width,
        shared=width * (config.get("n_shared_experts") or 0),
        first=config.get("first_k_dense_replace", 0),
    )
    latent = LatentAttention(
        q_rank=config.get("q_lora_rank") or 0,
        kv_rank=_number(config, "kv_lora_rank"),
        nope=_number(config, "qk_nope_head_dim"),
        rope=_number(config, "qk_rope_head_dim"),
        value=_number(config, "v_head_dim"),
    )
    return replace(shape, experts=experts, latent=latent), longest


def _gpt2(config: Config) -> tuple[TransformerShape, int]:
    _refuse(config, {"tie_word_embeddings": True, "add_cross_attention": False})
    hidden, context = _number(config, "n_embd"), _number(config, "n_positions", "n_ctx")
    shape = TransformerShape(
        layers=_number(config, "n_layer"),
        hidden=hidden,
        heads=_number(config, "n_head"),
        ffn=config.get("n_inner") or 4 * hidden,
        vocabulary=_number(config, "vocab_size"),
        context=context,
    )
    return shape, context


def _opt(config: Config) -> tuple[TransformerShape, int]:
    hidden = _number(config, "hidden_size")
    plain = {"word_embed_proj_dim": hidden, "do_layer_norm_before": True, "tie_word_embeddings": True, "enable_bias": True}
    _refuse(config, plain)
    longest = _number(config, "max_position_embeddings")
    shape = TransformerShape(
        layers=_number(config, "num_hidden_layers"),
        hidden=hidden,
        heads=_number(config, "num_attention_heads"),
        ffn=_number(config, "ffn_dim"),
        vocabulary=_number(config, "vocab_size"),
        context=longest,
        offset=2,
        fused_qkv=False,
    )
    return shape, longest


def _bert(config: Config) -> tuple[TransformerShape, int]:
    _refuse(config, {"position_embedding_type": "absolute", "is_decoder": False})
    longest = _number(config, "max_position_embeddings")
    shape = TransformerShape(
        layers=_number(config, "num_hidden_layers"),
        hidden=_number(config, "hidden_size"),
        heads=_number(config, "num_attention_heads"),
        ffn=_number(config, "intermediate_size"),
        vocabulary=_number(config, "vocab_size"),
        context=longest,
        segments=_number(config, "type_vocab_size"),
        causal=False,
        post_norm=True,
        fused_qkv=False,
        head="dense",
    )
    return shape, longest


_KINDS: Mapping[str, Callable[[Config], tuple[TransformerShape, int]]] = {
    "bert": _bert,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_oss": _gpt_oss,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "opt": _opt,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
