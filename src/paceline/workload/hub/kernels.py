"""Layers of modules that run as custom kernels on a GPU, by the name of their class in transformers.

transformers has a slow form of each for machines without the kernel: loops over experts, scans step by step. The layers here
are those of the kernels (``builders``), with the dimensions that the module states. A module whose parameters are not those of
its layers is traced as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from paceline.workload.builders.delta_rule import GatedDelta, KimiDelta
from paceline.workload.builders.experts import Experts, expert_layers
from paceline.workload.builders.layer_builders import LayerSpec
from paceline.workload.builders.linear_recurrence import Lightning, gated_recurrence, linear_attention
from paceline.workload.builders.rwkv import Rwkv, channel_mixing
from paceline.workload.builders.state_space import Mamba, Mamba2
from paceline.workload.hub.skipped import Build, Builder
from paceline.workload.hub.small_kernels import ACTIVATION, NORM, activation, norm


def builder(module: Any) -> Builder | None:
    """Return the builder of a module's layers; None for a module that is traced."""
    name = type(module).__name__
    return next((replace(own, build=_checked(own.build)) for pattern, own in _KERNELS if pattern.search(name)), None)


def _checked(build: Build) -> Build:
    def checked(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec] | None:
        try:
            layers = build(module, args, kwargs, samples)
        except AttributeError:
            return None
        held = sum(p.numel() for p in module.parameters())
        return layers if layers and held == sum(prod(shape) for part in layers for _, shape in part.weights) else None

    return checked


def _tokens(args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> tuple[float, int]:
    """Return tokens of a sample, and the width of one."""
    hidden = args[0] if args else next(iter(kwargs.values()))
    return prod(hidden.shape[:-1]) / samples, int(hidden.shape[-1])


def _experts(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec] | None:
    """Return the experts of transformers 5, whose weights are (experts, outputs, inputs), or the transpose."""
    first = module.gate_up_proj if module.has_gate else module.up_proj
    rows, width = _tokens(args, kwargs, samples)
    chosen = args[1] if len(args) > 1 else kwargs["top_k_index"]
    count, outputs = int(first.shape[0]), int(first.shape[1] if first.shape[2] == width else first.shape[2])
    if first.shape[2] == first.shape[1]:
        outputs = int(first.shape[2])
    own = Experts(count=count, active=int(chosen.shape[-1]), ffn=outputs // (2 if module.has_gate else 1))
    parts = expert_layers(own, rows, width, gated=module.has_gate, bias=bool(module.has_bias))
    return [part for part in parts if part.name not in ("router", "route")]


def _mamba2(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    own = Mamba2(
        heads=module.num_heads,
        head_dim=module.head_dim,
        state=module.ssm_state_size,
        groups=module.n_groups,
        conv=module.conv_kernel_size,
        conv_bias=module.conv1d.bias is not None,
        chunk=module.chunk_size,
        bias=module.in_proj.bias is not None,
        gated_norm=getattr(module, "mamba_rms_norm", True),
    )
    return [part.named("mixer.") for part in own.layers(tokens, width)]


def _mamba(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    own = Mamba(
        inner=module.intermediate_size,
        state=module.ssm_state_size,
        rank=module.time_step_rank,
        conv=module.conv_kernel_size,
        conv_bias=module.conv1d.bias is not None,
        bias=module.in_proj.bias is not None,
        normalised=hasattr(module, "dt_layernorm"),
    )
    parts = own.layers(tokens, width)
    if own.normalised and not any(True for _ in module.dt_layernorm.parameters()):  # norms without weights
        parts = [replace(part, weights=()) if part.kind == "RMSNorm" else part for part in parts]
    return [part.named("mixer.") for part in parts]


def _gated_delta(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    own = GatedDelta(
        key_heads=module.num_k_heads,
        key_dim=module.head_k_dim,
        value_heads=module.num_v_heads,
        value_dim=module.head_v_dim,
        conv=module.conv_kernel_size,
    )
    return [part.named("mixer.") for part in own.layers(tokens, width)]


def _kimi_delta(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    narrow_decay, narrow_gate = (
        getattr(own, name, None) for own, name in ((module.forget_gate, "f_a_proj"), (module, "g_a_proj"))
    )
    own = KimiDelta(
        heads=module.num_heads,
        width=module.head_dim,
        conv=module.conv_kernel_size,
        decay_rank=narrow_decay.out_features if narrow_decay is not None else 0,
        gate_rank=narrow_gate.out_features if narrow_gate is not None else 0,
    )
    return [part.named("mixer.") for part in own.layers(tokens, width)]


def _lightning(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    own = Lightning(heads=module.num_attention_heads, width=module.head_dim, chunk=module.block_size)
    return [part.named("mixer.") for part in own.layers(tokens, width)]


def _mlstm(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    query, value = kwargs["query"], kwargs["value"]
    _, heads, tokens, key_dim = query.shape
    scan = linear_attention(query.shape[0] * tokens / samples, heads, key_dim, value.shape[-1], module.config.chunk_size)
    return [scan.named("mixer.")]


def _rwkv(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    return [part.named("mixer.") for part in Rwkv(inner=module.attention_hidden_size).layers(tokens, width)]


def _rwkv_channels(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, width = _tokens(args, kwargs, samples)
    return channel_mixing(tokens, width, module.key.out_features)


def _gated_recurrence(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    tokens, _ = _tokens(args, kwargs, samples)
    return [part.named("mixer.") for part in gated_recurrence(tokens, module.num_attention_heads, module.block_width)]


_KERNELS: tuple[tuple[re.Pattern[str], Builder], ...] = tuple(
    (re.compile(pattern) if isinstance(pattern, str) else pattern, own)
    for pattern, own in (
        (r"(?<!Shared)Experts$", Builder(_experts)),
        (r"Mamba2Mixer$|^(Bamba|FalconH1)Mixer$|^GraniteMoeHybridMambaLayer$|^Zamba2MambaMixer$", Builder(_mamba2)),
        (r"^(Jamba|Falcon|Zamba)?Mamba(Mamba)?Mixer$", Builder(_mamba)),
        (r"GatedDeltaNet$", Builder(_gated_delta)),
        (r"DeltaAttention$|^Glm5NextTextLinearAttention$", Builder(_kimi_delta)),
        (r"LightningAttention$", Builder(_lightning, pair=True)),
        (r"^xLSTMBackend$", Builder(_mlstm, pair=True, like="value")),
        (r"^RwkvSelfAttention$", Builder(_rwkv, pair=True)),
        (r"^RwkvFeedForward$", Builder(_rwkv_channels, pair=True)),
        (r"Rglru$", Builder(_gated_recurrence)),
        (NORM, Builder(norm, saves=True)),
        (ACTIVATION, Builder(activation, saves=True)),
    )
)
