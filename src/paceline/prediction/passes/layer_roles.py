"""Part of a layer in its block, by its name: how it divides, whether it belongs to experts, and its product."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from paceline.workload.layers import Layer, Operation

Style = Literal["columns", "rows", "inside", "entries", "tokens"]
"""Ways to divide a layer: ``inside`` is a layer between the columns and the rows, ``entries`` an embedding by its vocabulary,
``tokens`` a layer that sequence parallelism divides and tensor parallelism alone repeats."""
_NAMES: tuple[tuple[str, Style], ...] = (
    (r"experts\.\w+", "tokens"),  # each device sends its own tokens (``expert_parallel``)
    (r"attention\.project|attention\.output|cross\.project|mixer\.out|contract|o_proj|down_proj|c_proj|dense_4h_to_h", "rows"),
    (r"(attention|cross)\.(qkv|query|key|value|key_value)|[qkv]_proj|qkv_proj|c_attn|query_key_value", "columns"),
    (r"mixer\.in\w*|expand|gate|gate_proj|up_proj|gate_up_proj|c_fc|dense_h_to_4h", "columns"),
    (r"head\.logits|head\.decoder|lm_head|head", "columns"),
    (
        r"attention|attn|self_attn|(attention|cross)\.(split|rotate|mix|query_norm|key_norm|gate_output)|mixer\.(conv|scan|norm)|act|gelu|multiply|act_fn|loss",
        "inside",
    ),
    (r"tokens|target_tokens|embed_tokens|wte|word_embeddings", "entries"),
)
_STYLES = tuple((re.compile(rf"(^|\.)({pattern})$"), style) for pattern, style in _NAMES)
_JOINED = re.compile(r"(^|\.)(key|value|gate)$")
_EXPERT = re.compile(r"(^|\.)experts\.[a-z]")


def style(layer: Layer) -> Style:
    """Return how the layer is divided, by its name."""
    return _style(layer.name)


@lru_cache(maxsize=65536)
def _style(name: str) -> Style:
    return next((style for pattern, style in _STYLES if pattern.search(name)), "tokens")


@lru_cache(maxsize=65536)
def is_expert(name: str) -> bool:
    """Return whether a layer or a parameter belongs to a block's experts, which form one grouped layer."""
    return _EXPERT.search(name) is not None


def forward_product(layer: Layer) -> Operation | None:
    """Return the product of the forward pass: (tokens, inputs) by (inputs, outputs)."""
    return next((o for o in layer.operations if o.kind == "matmul" and not o.backward and o.grows == "m"), None)


def shares_input(layer: Layer) -> bool:
    """Return whether an earlier product of the block reads and saves the same input, as a gate's or the keys' does.

    Under autocast each of them saves its own copy.
    """
    return layer.activation_bytes == 0 < (layer.activation_bytes_half or 0.0) or layer.name.endswith("experts.gate")


def widenings(layers: Sequence[Layer]) -> list[float]:
    """Return the outputs of the product that tuned software computes a layer's in, relative to the layer's own, (layers,).

    Queries, keys and values are one product (Megatron-Core, ``linear_qkv``), as are the expansion and a gate (``linear_fc1``).
    """
    outputs = [0.0 if (o := forward_product(layer)) is None else o.n for layer in layers]
    first, groups = -1, list(range(len(layers)))
    for i, layer in enumerate(layers):
        if outputs[i] and _JOINED.search(layer.name) and shares_input(layer) and first >= 0:
            groups[i] = first
        elif outputs[i]:
            first = i
    together = dict.fromkeys(groups, 0.0)
    for group, own in zip(groups, outputs, strict=True):
        together[group] += own
    return [together[group] / own if own else 1.0 for group, own in zip(groups, outputs, strict=True)]
