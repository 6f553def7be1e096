"""Network that Megatron-LM's arguments describe: a published one with these dimensions, or a new configuration.

The configuration is a ``config.json`` as of transformers, in a new temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
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
    """Yield the network with the dimensions of some arguments."""
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
    if not _OTHER_DESIGNS & options.keys():
        config = _config(options, sizes, gated, experts)
        yield StatedFact(
            "workload",
            _kept(config, f"megatron-{sizes['layers']}x{sizes['hidden']}"),
            source,
            f"a network of {words} that is not published",
        )


_OTHER_DESIGNS = {"multi_latent_attention", "hybrid_override_pattern", "is_hybrid_model", "mtp_num_layers", "spec"}
"""Arguments of networks that are not described by their sizes alone."""
_VOCABULARY = 50_257
"""Words of GPT-2's tokenizer, which Megatron-LM takes if no other is named."""


def _config(options: Mapping[str, Any], sizes: Mapping[str, int], gated: bool, experts: int) -> dict[str, Any]:
    """Return a configuration of transformers: Llama's design with gates, Mixtral's with experts, else GPT-2's."""
    hidden, heads = sizes["hidden"], sizes.get("heads", max(1, sizes["hidden"] // 128))
    ffn, vocabulary = sizes.get("ffn", 4 * hidden), _number(options, "vocab_size", _VOCABULARY)
    length = _number(options, "max_position_embeddings", _number(options, "seq_length", 2048))
    if not gated and not experts:
        named = {"n_embd": hidden, "n_layer": sizes["layers"], "n_head": heads, "n_inner": ffn, "n_positions": length}
        return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": vocabulary, **named}
    config: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": sizes.get("kv_heads", heads),
        "intermediate_size": ffn,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "tie_word_embeddings": "untie_embeddings_and_output_weights" not in options,
    }
    if not experts:
        return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **config}
    active = _number(options, "moe_router_topk", 2)
    inner = _number(options, "moe_ffn_hidden_size", ffn)
    of_experts = {"num_local_experts": experts, "num_experts_per_tok": active, "intermediate_size": inner}
    return {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], **config, **of_experts}


def _number(options: Mapping[str, Any], name: str, usual: int) -> int:
    text = str(options.get(name, ""))
    return int(text) if text.isdecimal() else usual


def _kept(config: Mapping[str, Any], name: str) -> str:
    """Write a configuration into a new folder of this name, and return its path."""
    place = Path(tempfile.mkdtemp(prefix="paceline-")) / name / "config.json"
    place.parent.mkdir()
    place.write_text(json.dumps(config), encoding="utf-8")
    return str(place)
