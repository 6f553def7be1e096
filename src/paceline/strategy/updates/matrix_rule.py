"""Rule that divides a network's tensors between Muon, which takes hidden matrices, and AdamW, which takes all others.

Jordan et al. 2024, Muon (https://kellerjordan.github.io/posts/muon/): embeddings, the output layer, and vectors are AdamW's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from paceline.strategy.sharding import block

VECTOR = "fewer than two dimensions"
EMBEDDING = "an embedding"
OUTSIDE = "outside the numbered blocks"
LAST = "the last matrix"
EMBEDDING_WORDS = ("embed", "wte", "wpe", "relative_attention_bias", "pos_emb")
"""Parts of a name that say that a tensor is an embedding, of tokens or positions."""


def rest_reasons(tensors: Iterable[tuple[str, tuple[int, ...]]], embeddings: Collection[str] = ()) -> Mapping[str, str]:
    """Return the names of the tensors that AdamW takes, with the reason.

    All other tensors are hidden matrices:

    1. A tensor of fewer than two dimensions is AdamW's.
    2. An embedding is AdamW's, by its layer or by ``EMBEDDING_WORDS`` in its name.
    3. A matrix outside the numbered blocks (``layers.0``, ``h.11``) is AdamW's, if the network has such blocks.
    4. If no matrix is outside, the last one is AdamW's, if its layer is not part of a block of several layers.

    Args:
        tensors: names and shapes, in the network's order.
        embeddings: names of weights of embedding layers.
    """
    reasons: dict[str, str] = {}
    matrices: list[str] = []
    for name, shape in tensors:
        if len(shape) < 2:
            reasons[name] = VECTOR
        elif name in embeddings or any(word in name.lower() for word in EMBEDDING_WORDS):
            reasons[name] = EMBEDDING
        else:
            matrices.append(name)
    outside = [name for name in matrices if not block(name)]
    if len(outside) < len(matrices):
        reasons.update(dict.fromkeys(outside, OUTSIDE))
    else:
        outside = []
    if matrices and not outside and _is_layer(matrices[-1]):
        reasons[matrices[-1]] = LAST
    return reasons


def _is_layer(name: str) -> bool:
    """Return whether a tensor's layer is not nested in a block of several layers."""
    return not block(name) or name == f"{block(name)}.weight"
