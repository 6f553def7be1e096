"""Norms and activations of transformers that a module spells out in several operations, as the one kernel that they are.

The tables by hand count each as one kernel, and the times of kernels were fitted to those. The weights are those of the module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.workload.builders.layer_builders import WORD, LayerSpec, elementwise, normalisation
from paceline.workload.builders.state_space import gated_norm

NORM = re.compile(r"(RMS|Rms|Layer|L2)Norm(Gated)?$")
ACTIVATION = re.compile(r"(GELU|Gelu|Laplace|ReLUSquared|XIELU)(Tanh)?(Activation)?$")


def norm(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec] | None:
    """Return a norm of one tensor, or of one with its gate; None for those of torch and for those of several modules."""
    from torch import nn

    given = [value for value in (*args, *kwargs.values()) if hasattr(value, "untyped_storage")]
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) or next(module.children(), None) is not None:
        return None
    weights = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    hidden = given[0]
    width = int(hidden.shape[-1])
    rows = hidden.numel() / samples / width
    if any(shape[-1] != width for _, shape in weights) or len(given) > 2:
        return None
    if len(given) == 2:
        return [replace(gated_norm("", rows, width, width), weights=weights)] if given[1].shape == hidden.shape else None
    return [replace(normalisation("", rows, width, rms=not any(name == "bias" for name, _ in weights)), weights=weights)]


def activation(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], samples: int) -> list[LayerSpec] | None:
    """Return an activation, element by element; None for a module of several."""
    if next(module.children(), None) is not None:
        return None
    x = WORD * (args[0] if args else next(iter(kwargs.values()))).numel() / samples
    weights = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    return [replace(elementwise("", "Activation", (1, 2 * x), (1, 3 * x), x), weights=weights)]
