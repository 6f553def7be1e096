"""Network that Megatron-LM's arguments describe: the published one with these dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.questions.facts import StatedFact
from paceline.workload.builders.shapes import SHAPES

_SIZES: Mapping[str, str] = {
    "num_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn",
}
"""Dimensions of our shapes by Megatron's names."""


def megatron_network(options: Mapping[str, Any], source: str) -> Iterator[StatedFact]:
    """Yield the network with the dimensions of some arguments, if one is published."""
    sizes = {ours: int(str(options[name])) for name, ours in _SIZES.items() if str(options.get(name, "")).isdecimal()}
    if "layers" not in sizes or "hidden" not in sizes:
        return
    words = f"{sizes['layers']} layers of width {sizes['hidden']:,}"
    gated = "swiglu" in options
    experts = int(str(options["num_experts"])) if str(options.get("num_experts", "")).isdecimal() else 0
    for name, named in SHAPES.items():
        shape = named.shape
        ffn = shape.ffn or 4 * shape.hidden
        same = {
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads or shape.heads,
            "ffn": ffn,
        }
        own = {"kv_heads": sizes.get("heads", shape.heads), "ffn": 4 * sizes["hidden"], **sizes}
        of_experts = shape.experts.count if shape.experts else 0
        if experts:  # the width of a dense block is another argument than that of an expert
            own["ffn"] = ffn
        plain = shape.causal and not named.lora and not named.pairs
        if plain and shape.gated == gated and of_experts == experts and all(own[key] == same[key] for key in own):
            yield StatedFact("workload", name, source, f"a network of {words}: {name}")
            return
