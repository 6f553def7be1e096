"""Layers that get adapters, by the names that PEFT and checkpoints give them.

PEFT compares the end of a module's path with each target, or a whole path with a pattern (``tuners/tuners_utils.py``,
``check_target_module_exists``). ``all-linear`` are all linear layers but the output layer, with routers and experts
(``_maybe_include_all_linear_layers``). Experts are two tensors in transformers 5, which PEFT adapts by name
(``target_parameters``): ``mlp.experts.gate_up_proj``. Gate and up-projection by their own names, as in transformers 4, have an
adapter of twice the rank together (``utils/transformers_weight_conversion.py``). PEFT adapts no experts of 4 or 8 bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from paceline.errors import UserError, unknown
from paceline.names import fold
from paceline.workload.builders.adapters.lora import ALL, ATTENTION, LoRA
from paceline.workload.layers import Layer, LayerTable, Operation

PRODUCTS = ("Linear", "Conv1D")
SAME_PRODUCT: tuple[tuple[str, ...], ...] = (
    ("query", "q_proj", "q", "q_lin", "wq", "q_b_proj", "to_q"),
    ("query_down", "q_a_proj"),
    ("key", "k_proj", "k", "k_lin", "wk", "to_k"),
    ("value", "v_proj", "v", "v_lin", "wv", "to_v"),
    ("qkv", "qkv_proj", "c_attn", "query_key_value", "wqkv"),
    ("key_value", "kv_b_proj"),
    ("latent", "kv_a_proj_with_mqa"),
    ("project", "o_proj", "out_proj", "o", "out_lin", "wo", "dense", "to_out.0"),
    ("gate", "gate_proj", "w1"),
    ("expand", "up_proj", "fc1", "c_fc", "fc_in", "dense_h_to_4h", "wi", "w3", "lin1", "ff.net.0.proj"),
    ("contract", "down_proj", "fc2", "fc_out", "dense_4h_to_h", "w2", "lin2", "ff.net.2"),
)
"""Names of one product in the tables of this package, in PEFT's and in checkpoints."""
_TOKENS = ("tokens", "embed_tokens", "wte", "word_embeddings", "tok_embeddings", "token_embedding", "embed_in", "shared")
_LOGITS = ("logits", "lm_head", "embed_out", "output_layer", "head", "decoder")
_OUTPUTS = ("output", "to_out.0", "to_out", "o_proj", "out_proj", "dense")
"""Names of the product after attention where this package calls it ``output``."""
_SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {fold(name): names for names in (*SAME_PRODUCT, _TOKENS, _LOGITS) for name in names} | {"output": _OUTPUTS}
)
_EXPERTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"expand": ("gate_up_proj", "up_proj", "w3"), "gate": ("gate_up_proj", "gate_proj", "w1"), "contract": ("down_proj", "w2")}
)
"""Parameters of experts that hold a product."""
_IN_ATTENTION = re.compile(
    r"(^|\.)(\w*attention|\w*attn\w*|cross|self|own)\.|attentions\.\d+\.to_\w"
    r"|(^|\.)(image|text)\.(qkv|project)$|(^|\.)singles\.\d+\.expand$"  # FLUX, which has no module of attention
    r"|mixer\.[qkvo]_proj$",
    re.IGNORECASE,
)
_EXPERT = re.compile(r"(^|\.)experts\.\w+$")
_PATTERN = re.compile(r"[\\*()\[\]|^$?{}]")
_FEED_FORWARD = ("gate", "expand", "contract")
_APART = ("query", "key", "value", "add_q_proj", "add_k_proj", "add_v_proj")
"""Queries, keys and values in diffusers, those of the text with ``add_``. The released code of FLUX and SD3 has ``qkv``."""


def product_of(layer: Layer) -> Operation | None:
    """Return the one product of a linear layer in the forward pass; None for other layers."""
    forward = _forward(layer)
    plain = layer.kind in PRODUCTS and len(forward) == 1 and forward[0].grows == "m" and forward[0].batch == 1
    return forward[0] if plain else None


def convolution_of(layer: Layer) -> Operation | None:
    """Return the one product of a convolution in the forward pass; None for other layers."""
    forward = _forward(layer)
    return forward[0] if layer.kind.startswith("Conv") and len(forward) == 1 and forward[0].kind == "conv" else None


def experts_of(layer: Layer) -> Operation | None:
    """Return the grouped product of a layer of experts in the forward pass; None for other layers."""
    forward = _forward(layer)
    grouped = layer.kind in PRODUCTS and len(forward) == 1 and forward[0].batch > 1 and _EXPERT.search(layer.name)
    return forward[0] if grouped else None


def is_tokens(layer: Layer) -> bool:
    """Return whether a layer is a table of tokens, by its name."""
    return layer.kind == "Embedding" and layer.name.rpartition(".")[2] in _TOKENS


def chosen_layers(table: LayerTable, lora: LoRA) -> frozenset[int]:
    """Return the indices of the layers that get adapters. Raises UserError for a target that no layer has."""
    able = {index: layer for index, layer in enumerate(table.layers) if _able(layer)}
    chosen: set[int] = set()
    for target in lora.targets:
        own = [i for i, layer in able.items() if _is_target(layer, target) and not (target == ALL and _is_packed(layer, lora))]
        if not own and target == "qkv" and any(layer.name.endswith(".add_q_proj") for layer in able.values()):
            own = [i for i, layer in able.items() if any(_is_target(layer, name) for name in _APART)]
        if not own:
            raise _unknown(table, list(able.values()), target)
        chosen.update(own)
    return frozenset(chosen)


def saved_layers(table: LayerTable, lora: LoRA) -> frozenset[int]:
    """Return the indices of the layers that are trained whole. Raises UserError for a name that no layer has."""
    owners = {p.layer for p in table.parameters}
    chosen: set[int] = set()
    if lora.embeddings:
        matrices = {p.layer for p in table.parameters if len(p.shape) == 2}
        chosen |= {i for i in matrices if table.layers[i].kind == "Embedding" or table.layers[i].is_logits}
    for name in lora.saved:
        own = [i for i in owners if any(path.endswith(name) for path in _paths(table.layers[i]))]  # PEFT's rule for these
        if not own:
            raise _unknown(table, [table.layers[i] for i in sorted(owners)], name)
        chosen.update(own)
    return frozenset(chosen)


def _forward(layer: Layer) -> list[Operation]:
    return [o for o in layer.operations if not o.backward and o.kind != "memory"]


def doubles_rank(layer: Layer, lora: LoRA) -> bool:
    """Return whether gate and up-projection of experts have an adapter of twice the rank: no target names both as one."""
    pair = experts_of(layer) is not None and layer.name.rpartition(".")[2] in ("gate", "expand")
    named = [target for target in lora.targets if target.rpartition(".")[2] in ("gate_up_proj", "experts")]
    return pair and not any(_is_target(layer, target) for target in named)


def _is_packed(layer: Layer, lora: LoRA) -> bool:
    return bool(lora.bits) and experts_of(layer) is not None


def _able(layer: Layer) -> bool:
    """Return whether PEFT has adapters for a layer."""
    if layer.name.endswith("shared.scale"):
        return False
    return is_tokens(layer) or any(of(layer) is not None for of in (product_of, convolution_of, experts_of))


def _unknown(table: LayerTable, layers: Sequence[Layer], target: str) -> UserError:
    """Return the error for a target that no layer has, which names those that are there."""
    linear = [layer for layer in layers if product_of(layer) is not None and not layer.is_logits]
    ends = dict.fromkeys(layer.name.rpartition(".")[2] for layer in linear)
    legal = [ATTENTION] * any(_IN_ATTENTION.search(layer.name) for layer in linear) + [ALL] * bool(linear) + list(ends)
    legal += ["experts"] * any(experts_of(layer) is not None for layer in layers)
    legal += ["embed_tokens"] * any(map(is_tokens, layers)) + ["lm_head"] * any(layer.is_logits for layer in layers)
    fix = f"give targets={ALL}" if target == ATTENTION and linear else ""
    return unknown(f"layer of {table.name}", target, legal, fix, few=12)


def _is_target(layer: Layer, target: str) -> bool:
    plain = product_of(layer) is not None and not layer.is_logits
    if target == ALL:
        return plain or experts_of(layer) is not None
    if target == ATTENTION:
        return plain and _IN_ATTENTION.search(layer.name) is not None
    if _PATTERN.search(target):
        return any(re.fullmatch(target, path) for path in _paths(layer))
    return _ends_with(layer, target)


def _ends_with(layer: Layer, target: str) -> bool:
    """Return whether a layer's path, in one of its spellings, ends with a name."""
    if target in ("experts", "mlp.experts"):
        return experts_of(layer) is not None
    return any(path == target or path.endswith(f".{target}") for path in _paths(layer))


def _paths(layer: Layer) -> Iterator[str]:
    """Yield the path of a layer as this package, PEFT and checkpoints spell it."""
    head, _, last = layer.name.rpartition(".")
    yield layer.name
    experts = experts_of(layer) is not None
    names = _EXPERTS.get(last, ()) if experts else _LOGITS if layer.is_logits else _SYNONYMS.get(fold(last), ())
    feed_forward = last in _FEED_FORWARD and not head.endswith(("mlp", "experts"))
    for name in (last, *names):
        yield f"{head}.{name}" if head else name
        theirs = re.sub(r"(^|\.)attention$", r"\1self_attn", re.sub(r"^blocks\.", "model.layers.", head))
        if experts:
            theirs = re.sub(r"\.experts$", ".mlp.experts", theirs)
        elif feed_forward:
            theirs = f"{theirs}.mlp" if theirs else "mlp"
        elif layer.is_logits or is_tokens(layer):
            theirs = "" if layer.is_logits else "model"
        yield f"{theirs}.{name}" if theirs else name
        if head.endswith((".attention", ".cross")):  # as in diffusers
            yield f"{head.rpartition('.')[0]}.attn.{name}"
