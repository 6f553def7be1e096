"""Facts of a transformer that cost nothing and define it. Files that build the network for a framework need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Facts of a transformer without a cost. Empty text and 0 mean unknown.

    Attributes:
        activation: of the feed-forward network: a value of ``ACTIVATIONS``.
        rotary_base: base of the rotation of queries and keys.
        norm_epsilon: number that a norm adds to the variance.
    """

    activation: str = ""
    rotary_base: float = 0.0
    norm_epsilon: float = 0.0


ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python"), "gelu"),
        **dict.fromkeys(("silu", "swish"), "silu"),
        **dict.fromkeys(("relu2", "relu_squared"), "relu2"),
        "relu": "relu",
    }
)
"""Activations by their names in Hugging Face configurations."""
_LLAMA3 = Details(activation="silu", rotary_base=500_000, norm_epsilon=1e-5)
_MILLION = Details(activation="silu", rotary_base=1_000_000, norm_epsilon=1e-6)
_SILU = Details(activation="silu", rotary_base=10_000, norm_epsilon=1e-5)
_GELU = Details(activation="gelu", norm_epsilon=1e-5)
FAMILIES: Mapping[str, Details] = MappingProxyType(
    {
        "gpt2": _GELU,
        "gpt3": _GELU,
        "opt": Details(activation="relu", norm_epsilon=1e-5),
        "mpt": _GELU,
        "bloom": _GELU,
        "llama-2-34b": Details(activation="silu", rotary_base=1_000_000, norm_epsilon=1e-5),
        "llama-2": _SILU,
        "llama-30b": Details(activation="silu", rotary_base=10_000, norm_epsilon=1e-6),
        "llama-65b": _SILU,
        "llama-3": _LLAMA3,
        "nemotron-4": Details(activation="relu2", rotary_base=10_000, norm_epsilon=1e-5),
        "qwen-2.5": _MILLION,
        "qwen-3": _MILLION,
        "mistral-7b": _SILU,
        "mixtral": Details(activation="silu", rotary_base=1_000_000, norm_epsilon=1e-5),
        "deepseek": Details(activation="silu", rotary_base=10_000, norm_epsilon=1e-6),
        "gemma": Details(activation="gelu", rotary_base=10_000, norm_epsilon=1e-6),
    }
)
"""Details by the beginning of a published name: ``hidden_act``, ``rope_theta``, ``rms_norm_eps`` and the like of the released
configurations (config.json on Hugging Face), with torchtitan 0.3's ``models/llama3`` and ``models/qwen3`` for those two."""


def published_details(name: str) -> Details | None:
    """Return the details of a published network by its name in ``SHAPES``; None if they are not known."""
    return next((details for family, details in FAMILIES.items() if name == family or name.startswith(f"{family}-")), None)


def config_details(config: Mapping[str, Any]) -> Details:
    """Return the details of a Hugging Face configuration, with the keys of ``transformers`` 4 and 5."""
    rope = config.get("rope_parameters")
    theta = config.get("rope_theta", rope.get("rope_theta") if isinstance(rope, Mapping) else None)
    named = (config.get(key) for key in ("hidden_activation", "hidden_act", "activation_function"))
    activation = next((ACTIVATIONS[name] for name in named if isinstance(name, str) and name in ACTIVATIONS), "")
    epsilons = (config.get(key) for key in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"))
    return Details(
        activation=activation,
        rotary_base=_number(theta),
        norm_epsilon=next((value for value in map(_number, epsilons) if value), 0.0),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0.0
