"""Look-up of language models by their spelling in tables of measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

from paceline.workload import Workload
from paceline.workload.builders.lora import LoRA, with_adapters
from paceline.workload.builders.shapes import SHAPES

LORA_RANK = 16
"""Rank of the adapters in NVIDIA's LoRA tables, as in MLPerf's benchmark of LoRA; they adapt the products of attention."""
_WITH_EXPERTS: tuple[tuple[str, str], ...] = (
    (r"qwen-?3-(30b-a3b|235b-a22b)", "qwen-3-{}"),
    (r"deepseek-?v(2-lite|2|3)(?![.\d])", "deepseek-v{}"),
    (r"mixtral-8x(7|22)b", "mixtral-8x{}b"),
    (r"grok-?1()", "grok-1"),
    (r"gpt-oss-(20|120)b", "gpt-oss-{}b"),
    (r"llama-?4-(scout|maverick)", "llama-4-{}"),
    (r"kimi-k2()", "kimi-k2"),
    (r"nemotron-3-nano()", "nemotron-3-nano-30b-a3b"),
    (r"nemotron-3-5-lightning()", "nemotron-3.5-lightning-30b-a3b"),
    (r"nemotron-3-super()", "nemotron-3-super-120b-a12b"),
    (r"nemotron-3-ultra()", "nemotron-3-ultra-550b-a55b"),
    (r"qwen-?3-next()", "qwen-3-next-80b-a3b"),
)
_NAMES: tuple[tuple[str, str], ...] = (
    (r"llama-?3(?:\.\d)?-(8|70|405)b", "llama-3-{}b"),
    (r"llama-?3\.2-(1|3)b", "llama-3.2-{}b"),
    (r"llama-?2-(7|13|70)b", "llama-2-{}b"),
    (r"nemo-?megatron()", "gpt3-175b"),  # NVIDIA/dgxc-benchmarking, nemo_megatron/README_175b.md
    (r"gpt-?3?-?(5|20|175)b", "gpt3-{}b"),
    (r"nemotron-?h-(8|47|56)b", "nemotron-h-{}b"),
    (r"nemotron-?4-(15|340)b", "nemotron-4-{}b"),
    (r"nemotron-(15|340)b", "nemotron-4-{}b"),
    (r"nemotron-(?:3-)?(8|22)b", "nemotron-3-{}b"),
    (r"qwen-?2\.5-(7|14|32|72)b", "qwen-2.5-{}b"),
    (r"qwen-?3-(8|14)b", "qwen-3-{}b"),
    (r"mistral-(7)b", "mistral-{}b"),
)
_EXPERTS = re.compile(
    r"moe|mixtral|deepseek|grok|gpt-oss|kimi|llama-?4(?![0-9])|dbrx|glm|nemotron-3-(nano|super|ultra|5-lightning)|qwen-?3-next|\d+b?-?a\d+b"
)
_SEPARATORS = re.compile(r"[\s_-]+")


def has_experts(text: str) -> bool:
    """Return whether the model is a mixture of experts."""
    return _EXPERTS.search(_folded(text)) is not None


def model_name(text: str) -> str:
    """Return the workload of a model, whatever text surrounds its name (``LLAMA3.1_405B``: ``llama-3-405b``); else empty."""
    folded = _folded(text)
    for pattern, name in _WITH_EXPERTS if has_experts(text) else _NAMES:
        if matched := re.search(rf"(?<![a-z0-9]){pattern}(?![a-z0-9])", folded):
            return name.format(matched[1])
    return ""


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
    return with_adapters(workload, LoRA(LORA_RANK), name) if lora else workload


def _folded(text: str) -> str:
    return _SEPARATORS.sub("-", text.strip().casefold())
