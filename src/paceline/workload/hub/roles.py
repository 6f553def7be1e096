"""Names of traced layers as those of this package, by the names that transformers gives the same parts.

``model.layers.3.self_attn.q_proj`` is ``model.layers.3.attention.query``. Division among devices, recomputation and adapters go
by these names. A part without a rule keeps its path, and so does the second of two that would get one name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.workload.builders.adapters.targets import SAME_PRODUCT
from paceline.workload.layers import Layer

_ATTENTION = re.compile(r"(^|_)(self_?attn|attn|self_?attention|attention|selfattention|layer_attention)\d*$", re.IGNORECASE)
_CROSS = re.compile(r"cross_?att|encoder_attn|encdecattention|crossattention|^attn2$", re.IGNORECASE)
_PARTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(^|\.){pattern}$"), name)
    for pattern, name in (
        (r"attention\.output\.dense", "attention.project"),
        (r"intermediate\.dense", "expand"),
        (r"(?<!attention\.)output\.dense", "contract"),
        (r"intermediate\.intermediate_act_fn", "act"),
        (r"(mlp|feed_forward|ffn|ff|moe|block_sparse_moe|shared_experts?)\.(act|act_fn|activation_fn|activation)", "act"),
        (r"(mlp|feed_forward|ffn|DenseReluDense)\.(gate_up_proj|Wi|wi_1|c_fc)", "expand"),
        (r"(mlp|feed_forward|ffn|DenseReluDense)\.wi_0", "gate"),
        (r"(mlp|feed_forward|ffn|DenseReluDense)\.(Wo|wo|c_proj)", "contract"),
        (r"shared_expert_gate", "shared.scale"),
        (r"attn2\.to_out\.0", "cross.project"),
        (r"attn1?\.to_out\.0", "attention.project"),
        (r"ff\.net\.0\.proj", "expand"),
        (r"ff\.net\.0", "act"),
        (r"ff\.net\.2", "contract"),
    )
)
_PRODUCTS = {other: names[0] for names in SAME_PRODUCT for other in names}
_NORMS = {
    "split": "split",
    "q_norm": "query_norm",
    "k_norm": "key_norm",
    "q_layernorm": "query_norm",
    "k_layernorm": "key_norm",
}
_MIXED = {"expand", "gate", "contract"}
_OWN = ("experts.", "mixer.")  # of builders
_SHARED = re.compile(r"(^|\.)shared_(experts?|mlp)(\.|$)")
_FEED_FORWARD = re.compile(r"(^|\.)(mlp|feed_forward|ffn|shared_experts?|shared_mlp)$")
ROUTER = re.compile(r"Router$|TopKGate$")


def named(layers: Sequence[Layer], vocabulary: int) -> list[str]:
    """Return the names of traced layers, in order. ``vocabulary``: outputs of the product over it; 0: none."""
    taken: set[str] = set()
    result = []
    holders = {block_of(layer.name) for layer in layers if ".experts." in layer.name}
    for layer in layers:
        name = _name(layer, vocabulary, holders)
        if name in taken:
            name = layer.name
        taken.add(name)
        result.append(name)
    return result


def _name(layer: Layer, vocabulary: int, holders: set[str]) -> str:
    path = layer.name
    head = block_of(path)
    rest = path[len(head) :]
    if not head:
        product = next((o for o in layer.operations if o.kind == "matmul" and not o.backward), None)
        return "head.logits" if vocabulary and product is not None and product.n == vocabulary else path
    last = rest.rpartition(".")[2]
    if rest.startswith(_OWN):
        return path
    mixed = head in holders and not _SHARED.search(rest)
    if ROUTER.search(layer.kind) or (mixed and last in ("gate", "router")):
        return f"{head}router"
    shared = "shared." if _SHARED.search(rest) else ""
    for pattern, name in _PARTS:
        if pattern.search(rest):
            return f"{head}{shared}{name}" if not name.startswith("shared") else head + name
    around = rest.split(".")
    cross = any(map(_CROSS.search, around))
    if cross or any(map(_ATTENTION.search, around)):
        if (
            _ATTENTION.search(last)
            or _CROSS.search(last)
            or last == "self"
            or any(o.kind == "attention" for o in layer.operations)
        ):
            return f"{head}{'cross' if cross else 'attention'}.mix"
        role = _NORMS.get(last) or _PRODUCTS.get(last.lower())
        return f"{head}{'cross' if cross else 'attention'}.{role}" if role and role not in _MIXED else path
    role = _PRODUCTS.get(last.lower())
    if role in _MIXED:
        return f"{head}{shared}{role}"
    return f"{head}{shared}multiply" if _FEED_FORWARD.search(rest) and not mixed else path


def block_of(path: str) -> str:
    """Return the block of a path with its dot; empty outside of all blocks, and for a block itself."""
    parts = path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[: number + 1]) + "." if number < len(parts) - 1 else ""
