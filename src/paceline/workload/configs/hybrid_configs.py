"""Dimensions of hybrids and state-space networks from their Hugging Face configurations: ``model_type`` to shape and length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from paceline.errors import UserError, shown
from paceline.workload.builders.delta_rule import GatedDelta
from paceline.workload.builders.experts import Experts
from paceline.workload.builders.hybrid import ExtraTokens, Hybrid, Mixer
from paceline.workload.builders.rwkv import Rwkv
from paceline.workload.builders.state_space import Mamba, Mamba2
from paceline.workload.builders.transformer import TransformerShape, llama
from paceline.workload.configs.config_values import MOST_LAYERS, TRACE, Config, NotRead, drops, flag, number, refuse
from paceline.workload.configs.decoder_configs import Shaped, llama_like

_LETTERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def _letters(config: Config, *names: str) -> str:
    """Return the letters of the blocks from a list of types or a pattern of letters; empty if none of ``names`` is set."""
    kinds = next((config[name] for name in names if config.get(name)), ())
    if not isinstance(kinds, str | Sequence) or len(kinds) > MOST_LAYERS:
        raise UserError(f"{names[0]} {shown(kinds)} in the configuration", "it is a list of types of blocks")
    letters = [kind if kind in "M*-E" else _LETTERS.get(kind, "") for kind in map(str, kinds)]
    if "" in letters:
        raise NotRead(f"blocks of {shown(kinds[letters.index('')])} in {names[0]} are not known here", TRACE)
    return "".join(letters)


def _with(config: Config, pattern: Sequence[str], mixer: Mixer, **defaults: Any) -> Shaped:
    """Return a decoder of Llama's design with these blocks. ``defaults``: as for ``llama_like``."""
    shape, longest = llama_like({"intermediate_size": 1, **config, "num_hidden_layers": len(pattern)}, **defaults)
    return replace(shape, hybrid=Hybrid(mixer=mixer, pattern=tuple(pattern))), longest


def _mamba2(config: Config, inner: int, *, groups: int = 1, state: int = 256, chunk: int = 256) -> Mamba2:
    """Return the mixer of Bamba, Granite and Falcon-H1."""
    heads = number(config, "mamba_n_heads", default=128)
    return Mamba2(
        heads=heads,
        head_dim=max(1, inner // heads),
        state=number(config, "mamba_d_state", default=state),
        groups=number(config, "mamba_n_groups", default=groups),
        conv=number(config, "mamba_d_conv", default=4),
        conv_bias=flag(config, "mamba_conv_bias", True),
        chunk=number(config, "mamba_chunk_size", default=chunk),
        bias=flag(config, "mamba_proj_bias", False),
    )


def _expanded(config: Config) -> int:
    return number(config, "mamba_expand", default=2) * number(config, "hidden_size")


def _nemotron_h(config: Config) -> Shaped:
    letters = _letters(config, "hybrid_override_pattern", "layers_block_type")
    if not letters:
        raise UserError("the configuration has no hybrid_override_pattern", "give a whole config.json")
    refuse(config, mlp_hidden_act="relu2", sliding_window=None)
    mixer = Mamba2(
        heads=number(config, "mamba_num_heads", default=128),
        head_dim=number(config, "mamba_head_dim", default=64),
        state=number(config, "ssm_state_size", default=128),
        groups=number(config, "n_groups", "mamba_n_groups", default=8),
        conv=number(config, "conv_kernel", "mamba_d_conv", default=4),
        conv_bias=flag(config, "use_conv_bias", True),
        chunk=number(config, "chunk_size", default=128),
        bias=flag(config, "use_bias", False),
    )
    width = number(config, "head_dim", "attention_head_dim", default=128)
    shape, longest = _with({**config, "head_dim": width}, letters, mixer, kv_heads=8, longest=4096)
    shape = replace(shape, gated=False, positions="none")
    if "E" in letters:
        each = number(config, "moe_intermediate_size", default=7688)
        shared = config.get("n_shared_experts", 1)
        experts = Experts(
            count=number(config, "n_routed_experts", default=8),
            active=number(config, "num_experts_per_tok", default=2),
            ffn=each,
            shared=number(config, "moe_shared_expert_intermediate_size", default=7688) if shared else 0,
            latent=number(config, "moe_latent_size") if config.get("moe_latent_size") else 0,
        )
        shape = replace(shape, experts=experts)
    further = _letters(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or "*E"
    return further_tokens(config, shape, further), longest


def further_tokens(config: Config, shape: TransformerShape, blocks: Sequence[str]) -> TransformerShape:
    """Return the shape with the modules that predict further tokens, if the configuration has any."""
    if not config.get("num_nextn_predict_layers"):
        return shape
    count = number(config, "num_nextn_predict_layers")
    return replace(shape, extra_tokens=ExtraTokens(count, tuple(blocks)))


def _bamba(config: Config) -> Shaped:
    attend = config.get("attn_layer_indices") or ()
    layers = number(config, "num_hidden_layers")
    mixer = _mamba2(config, _expanded(config))
    pattern = ["*-" if i in attend else "M-" for i in range(layers)]
    return _with(config, pattern, mixer, kv_heads=8, longest=262144)


def _granite(config: Config) -> Shaped:
    layers = number(config, "num_hidden_layers")
    letters = _letters(config, "layer_types", "layers_block_type") or "M" * layers
    shared, routed = number(config, "shared_intermediate_size", default=1024), config.get("num_local_experts", 8)
    pattern = [f"{letter}{'E' if routed else '-'}" for letter in letters]
    mixer = _mamba2(config, _expanded(config))
    shape, longest = _with(config, pattern, mixer)
    shape = replace(shape, positions="rotary" if config.get("position_embedding_type") == "rope" else "none")
    if not routed:
        return replace(shape, ffn=shared), longest
    experts = Experts(
        count=number(config, "num_local_experts", default=8),
        active=number(config, "num_experts_per_tok", default=2),
        ffn=number(config, "intermediate_size"),
        shared=shared,
    )
    return replace(shape, experts=experts), longest


def _falcon_h1(config: Config) -> Shaped:
    inner = number(config, "mamba_d_ssm", default=1024) if config.get("mamba_d_ssm", 1024) else _expanded(config)
    mixer = replace(_mamba2(config, inner), gated_norm=flag(config, "mamba_rms_norm", False))
    pattern = ["M*-"] * number(config, "num_hidden_layers")
    return _with(config, pattern, mixer, kv_heads=8, longest=8192)


def _jamba(config: Config) -> Shaped:
    hidden, layers = number(config, "hidden_size"), number(config, "num_hidden_layers")

    def chosen(name: str, period: int, offset: int) -> set[int]:
        first = config.get(f"{name}_offset", offset)
        return set(range(first if type(first) is int else offset, layers, number(config, f"{name}_period", default=period)))

    attend, mixed = chosen("attn_layer", 8, 4), chosen("expert_layer", 2, 1)
    rank = config.get("mamba_dt_rank", 256)
    mixer = Mamba(
        inner=_expanded(config),
        state=number(config, "mamba_d_state", default=16),
        rank=-(-hidden // 16) if rank == "auto" else number(config, "mamba_dt_rank", default=256),
        conv=number(config, "mamba_d_conv", default=4),
        conv_bias=flag(config, "mamba_conv_bias", True),
        bias=flag(config, "mamba_proj_bias", False),
        normalised=True,
    )
    count = number(config, "num_experts", default=16)
    pattern = [f"{'*' if i in attend else 'M'}{'E' if i in mixed and count > 1 else '-'}" for i in range(layers)]
    shape, longest = _with(config, pattern, mixer, kv_heads=8, longest=262144)
    active = number(config, "num_experts_per_tok", default=2)
    experts = Experts(count=count, active=min(active, count), ffn=number(config, "intermediate_size"))
    return replace(shape, experts=experts, positions="none"), longest


def _qwen3_next(config: Config) -> Shaped:
    refuse(config, mlp_only_layers=[], decoder_sparse_step=1)
    layers = number(config, "num_hidden_layers")
    every = number(config, "full_attention_interval", default=4)
    letters = _letters(config, "layer_types") or "".join("*" if (i + 1) % every == 0 else "M" for i in range(layers))
    mixer = GatedDelta(
        key_heads=number(config, "linear_num_key_heads", default=16),
        key_dim=number(config, "linear_key_head_dim", default=128),
        value_heads=number(config, "linear_num_value_heads", default=32),
        value_dim=number(config, "linear_value_head_dim", default=128),
        conv=number(config, "linear_conv_kernel_dim", default=4),
    )
    shape, longest = _with(config, [f"{letter}E" for letter in letters], mixer, kv_heads=2, head_dim=256, longest=32768)
    experts = Experts(
        count=number(config, "num_experts", default=512),
        active=number(config, "num_experts_per_tok", default=10),
        ffn=number(config, "moe_intermediate_size", default=512),
        shared=number(config, "shared_expert_intermediate_size", default=512),
        scaled=True,
    )
    shape = replace(shape, head_norm=True, output_gate=True, experts=experts)
    return further_tokens(config, shape, ("*E",)), longest


def _attention_free(config: Config, mixer: Mixer, block: str, **changes: Any) -> TransformerShape:
    layers, hidden = number(config, "num_hidden_layers", "n_layer"), number(config, "hidden_size", "d_model")
    shape = llama(layers, hidden, 1, 1, 0, number(config, "vocab_size"))
    return replace(shape, hybrid=Hybrid(mixer=mixer, pattern=(block,)), **changes)


def _mamba(config: Config) -> Shaped:
    hidden = number(config, "hidden_size", "d_model")
    rank = config.get("time_step_rank", "auto")
    mixer = Mamba(
        inner=number(config, "intermediate_size", default=number(config, "expand", default=2) * hidden),
        state=number(config, "state_size", default=16),
        rank=-(-hidden // 16) if rank == "auto" else number(config, "time_step_rank"),
        conv=number(config, "conv_kernel", default=4),
        conv_bias=flag(config, "use_conv_bias", True),
        bias=flag(config, "use_bias", False),
    )
    return _attention_free(config, mixer, "M", tied=flag(config, "tie_word_embeddings", True)), 1 << 20


def _mamba2_alone(config: Config) -> Shaped:
    mixer = Mamba2(
        heads=number(config, "num_heads", default=128),
        head_dim=number(config, "head_dim", default=64),
        state=number(config, "state_size", default=128),
        groups=number(config, "n_groups", default=8),
        conv=number(config, "conv_kernel", default=4),
        conv_bias=flag(config, "use_conv_bias", True),
        chunk=number(config, "chunk_size", default=256),
        bias=flag(config, "use_bias", False),
    )
    return _attention_free(config, mixer, "M", tied=flag(config, "tie_word_embeddings", False)), 1 << 20


def _rwkv(config: Config) -> Shaped:
    hidden = number(config, "hidden_size")
    shape = _attention_free(
        config,
        Rwkv(inner=number(config, "attention_hidden_size", default=hidden)),
        "M-",
        ffn=number(config, "intermediate_size", default=4 * hidden),
        norm="layer",
        embedding_norm=True,
        tied=flag(config, "tie_word_embeddings", False),
        dropout=drops(config),
    )
    return shape, number(config, "context_length", default=1024)


HYBRIDS: Mapping[str, Callable[[Config], Shaped]] = MappingProxyType(
    {
        "bamba": _bamba,
        "falcon_h1": _falcon_h1,
        "granitemoehybrid": _granite,
        "jamba": _jamba,
        "mamba": _mamba,
        "mamba2": _mamba2_alone,
        "nemotron_h": _nemotron_h,
        "qwen3_next": _qwen3_next,
        "rwkv": _rwkv,
    }
)
