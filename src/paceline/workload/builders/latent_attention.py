"""Layers of latent attention (MLA), in which keys and values are products of a short vector of each token.

DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1.2 and 2.1.3; training expands keys and values, and attention
has the heads of an ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UserError
from paceline.workload.builders.attention import attention
from paceline.workload.builders.layer_builders import WORD, LayerSpec, elementwise, linear, normalisation


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Dimensions of latent attention.

    Attributes:
        kv_rank: width of the vector for keys and values.
        q_rank: width of the vector for queries; 0: queries use the token itself.
        nope, rope: unrotated and rotated numbers of a head's query and key; all heads share the rotated key.
        value: numbers of a head's value.

    Raises:
        UserError: a width below 1 (``q_rank``: below 0).
    """

    kv_rank: int
    nope: int
    rope: int
    value: int
    q_rank: int = 0

    def __post_init__(self) -> None:
        if min(self.kv_rank, self.nope, self.rope, self.value) < 1 or self.q_rank < 0:
            raise UserError(
                f"no latent attention has ranks {self.q_rank} and {self.kv_rank}, and heads of {self.nope}, {self.rope} and "
                f"{self.value}",
                "each is at least 1; q_rank 0 leaves the vector of queries out",
            )


def latent_attention(
    m: LatentAttention, s: float, hidden: int, heads: int, *, bias: bool, fused: bool, drop: bool, causal: bool = True
) -> list[LayerSpec]:
    """Return the layers of attention over ``s`` tokens, named ``attention.``, after the norm of its input."""
    head = m.nope + m.rope
    parts = []
    if m.q_rank:
        parts += [
            linear("query_down", s, hidden, m.q_rank, bias=bias, sums=1),
            normalisation("query_down_norm", s, m.q_rank, rms=True),
        ]
    parts += [
        linear("latent", s, hidden, m.kv_rank + m.rope, bias=bias, kept=False, kept_half=True, sums=0 if m.q_rank else 1),
        normalisation("latent_norm", s, m.kv_rank, rms=True),
        linear("query", s, m.q_rank or hidden, heads * head, bias=bias),
        linear("key_value", s, m.kv_rank, heads * (m.nope + m.value), bias=bias),
    ]
    turned, joined = 2 * WORD * s * (heads + 1) * m.rope, 2 * WORD * s * heads * head
    parts += [
        elementwise("rotate", "Rotary", (1, turned), (1, turned)),
        elementwise("split", "Concat", (1, joined), (1, joined)),  # each head's key gets the shared rotated part
        attention("mix", s, s, heads, heads, head, fused=fused, drop=drop, value_width=m.value, causal=causal),
        linear("project", s, heads * m.value, hidden, bias=bias, kept=False),
    ]
    return [part.named("attention.") for part in parts]
