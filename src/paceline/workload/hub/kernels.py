"""Layers of modules that run as custom kernels on a GPU, by the name of their class in transformers.

transformers has a slow form of each for machines without the kernel: loops over experts, scans step by step. The layers here
are those of the kernels (``builders``), with the dimensions that the module states. A module whose parameters are not those of
its layers is traced as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from paceline.workload.builders.delta_rule import GatedDelta
from paceline.workload.builders.experts import Experts, expert_layers
from paceline.workload.builders.layer_builders import LayerSpec, normalisation
from paceline.workload.builders.state_space import Mamba, Mamba2
from paceline.workload.hub.skipped import Build


def builder(module: Any) -> Build | None:
    """Return the builder of a module's layers; None for a module that is traced."""
    name = type(module).__name__
    return next((_checked(build) for pattern, build in _KERNELS if pattern.search(name)), None)


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
    return [part.named("mixer.") for part in own.layers(tokens, width)]


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


def _rms_norm(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec]:
    """Return the norm as one kernel, as the tables by hand count it and the times of kernels were fitted."""
    rows, width = _tokens(args, kwargs, samples)
    return [normalisation("", rows, width, rms=True)]


_KERNELS: tuple[tuple[re.Pattern[str], Build], ...] = tuple(
    (re.compile(pattern), build)
    for pattern, build in (
        (r"(?<!Shared)Experts$", _experts),
        (r"Mamba2Mixer$|^BambaMixer$|^FalconH1Mixer$|HybridMambaLayer$", _mamba2),
        (r"^(Jamba|Falcon)?Mamba(Mamba)?Mixer$", _mamba),
        (r"GatedDeltaNet$", _gated_delta),
        (r"RMSNorm$", _rms_norm),
    )
)
