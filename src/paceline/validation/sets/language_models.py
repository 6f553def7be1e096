"""Look-up of language models by their spelling in tables of measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from paceline.workload import Workload
from paceline.workload.builders.adapters.insertion import with_adapters
from paceline.workload.builders.adapters.lora import LoRA
from paceline.workload.builders.shapes import SHAPES
from paceline.workload.catalogue import canonical

LORA_RANK = 16
LORA_TARGETS = ("qkv",)
"""Rank and targets of adapters in NVIDIA's tables of LoRA (Megatron-Bridge, ``recipes/llama``: ``dim = 16``, ``target_modules =
["linear_qkv"]``)."""
_EXPERTS = re.compile(
    r"moe|mixtral|deepseek|grok|gpt-oss|kimi|llama-?4(?![0-9])|dbrx|glm|nemotron-3-(nano|super|ultra|5-lightning)|qwen-?3-next|\d+b?-?a\d+b"
)
_SEPARATORS = re.compile(r"[\s_-]+")


def has_experts(text: str) -> bool:
    """Return whether the model is a mixture of experts."""
    return _EXPERTS.search(_folded(text)) is not None


def model_name(text: str) -> str:
    """Return the transformer that ``text`` names, as ``workload.catalogue.canonical`` reads it; empty without one."""
    if _folded(text).startswith("nemo-megatron"):
        return "gpt3-175b"  # NVIDIA/dgxc-benchmarking, nemo_megatron/README_175b.md
    name = canonical(text)
    return name if name in SHAPES else ""


@cache
def language_model(text: str, seq_len: int, *, layers: int = 0, lora: bool = False, vocabulary: int = 0) -> Workload | None:
    """Return the model that ``text`` names, on sequences of ``seq_len`` tokens; None for an unknown workload.

    Args:
        layers: layers of a shortened model; 0: its own.
        lora: whether only adapters are trained.
        vocabulary: vocabulary of a model that was trained on other tokens, with a separate output layer; 0: its own.

    Raises:
        UserError: more tokens than positions.
    """
    named = SHAPES.get(model_name(text))
    if named is None:
        return None
    shape = named.shape
    short = bool(layers) and layers != shape.layers
    if short:
        shape = replace(shape, layers=layers)
    if vocabulary:
        shape = replace(shape, vocabulary=vocabulary, tied=False)
    if lora:
        shape = replace(shape, fused_qkv=True)
    name = model_name(text) + ("-lora" if lora else "") + (f"-of-{layers}-layers" if short else "")
    workload = Workload.from_shape(shape, seq_len, name=name)
    return with_adapters(workload, LoRA(LORA_RANK, LORA_TARGETS), name) if lora else workload


def _folded(text: str) -> str:
    return _SEPARATORS.sub("-", text.strip().casefold())
