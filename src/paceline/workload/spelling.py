"""Spellings of a network's name in tables, model cards and reports."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SEPARATORS = re.compile(r"[\s_-]+")
_BRACKETS = re.compile(r"\s*[(\[][^()\[\]]*[)\]]|\b\d+-?\s?nodes?\b", re.IGNORECASE)
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)[\s-]+([bm])(?![a-z0-9])", re.IGNORECASE)
_WEIGHTS = re.compile(
    r"instruct|chat|hf|it|base|thinking|reasoning|distill|cased|uncased|preview|pile|(?:in)?[0-9]{1,3}k|v[0-9.]+|[0-9]{4}",
    re.IGNORECASE,
)
"""Words at the end of a name that say which weights a network has, and nothing about its dimensions."""
_NOISE = re.compile(
    r"(?:pre|post)?-?train(?:ing)?|pretrain(?:ing|ed)?|(?:fine)?-?tun(?:e|ed|ing)|finetun(?:e|ed|ing)|fine|pre|sft|lora|q-?lora|full|"
    r"model|dev|pytorch|tensorflow2?|paddle|mindspore|megatron(?:core)?[0-9.]*|flagscale|deepspeed|huggingface|maxtext|paxml|meta|openbuddy|instruct|chat|hf|[0-9]{2}\.[0-9]{2}",
    re.IGNORECASE,
)
"""Words that say how a network was trained, by what, and on how much."""


def spellings(name: str) -> Iterator[str]:
    """Yield ``name``, then shorter forms of it: without the organisation, without the last words that describe the weights, and
    without remarks in brackets and words about the training (``Llama3 70B 2-node (LoRA fine-tune)``).
    """
    yield name
    words = _SEPARATORS.split(name.strip().rpartition("/")[2])
    yield "-".join(words)
    while len(words) > 1 and _WEIGHTS.fullmatch(words[-1]):
        words.pop()
        yield "-".join(words)
    plain = _SIZE.sub(r"\1\2", _BRACKETS.sub("", name).strip().rpartition("/")[2])
    rest = [word for word in _SEPARATORS.split(plain) if word and not _NOISE.fullmatch(word)]
    while rest:
        yield "-".join(rest)
        if not _WEIGHTS.fullmatch(rest[-1]):
            return
        rest.pop()
