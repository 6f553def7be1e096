"""Layers of linear recurrences: linear attention in chunks (lightning attention, mLSTM), and the gated recurrence of Griffin.

A linear attention with a decay for each head is a Mamba-2 scan with one group of queries and keys for each head (Dao and Gu
2024, arXiv:2405.21060, section 5). Lightning attention: MiniMax 2025, arXiv:2501.08313, section 2.2. mLSTM: Beck et al. 2024,
xLSTM, arXiv:2405.04517, section 2.3, chunked as in its kernels (arXiv:2503.14376, section 3). Griffin: De et al. 2024,
arXiv:2402.19427, section 2.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.builders.layer_builders import WORD, LayerSpec, elementwise, grouped, linear, memory, normalisation
from paceline.workload.builders.state_space import WIDE, Mamba2, check_dimensions


def linear_attention(s: float, heads: int, key_dim: int, value_dim: int, chunk: int) -> LayerSpec:
    """Return linear attention with decay over ``s`` tokens, in chunks of products."""
    own = Mamba2(heads=heads, head_dim=value_dim, state=key_dim, groups=heads, chunk=chunk)
    return replace(own.scan(s), weights=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Lightning:
    """Dimensions of a block of lightning attention.

    Attributes:
        heads, width: heads of queries, keys and values, and their width.
        chunk: tokens of a chunk, whose products are dense.

    Raises:
        UserError: a dimension below 1.
    """

    heads: int
    width: int
    chunk: int = 256

    def __post_init__(self) -> None:
        check_dimensions("block of lightning attention", self.heads, self.width, self.chunk)

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers over ``s`` tokens, after the norm of their input."""
        inner = self.heads * self.width
        x = WORD * s * inner
        return [
            linear("in", s, hidden, 3 * inner, bias=False),
            elementwise("in_act", "SiLU", (1, 6 * x), (1, 9 * x), 3 * x),
            linear_attention(s, self.heads, self.width, self.width, self.chunk),
            normalisation("norm", s, inner, rms=True),
            linear("gate", s, hidden, inner, bias=False, kept=False, kept_half=True, sums=1),
            elementwise("gate_output", "Mul", (2, 5 * x), (3, 8 * x), 2 * x),
            linear("out", s, inner, hidden, bias=False),
        ]


def gated_recurrence(s: float, heads: int, width: int) -> list[LayerSpec]:
    """Return Griffin's recurrence over ``s`` tokens: gates from one product for each head, and a scan in fp32 (one kernel)."""
    inner = heads * width
    x, wide = WORD * s * inner, WIDE * s * inner
    scan = LayerSpec(
        "scan",
        "Scan",
        # gates and input become the decay and the scaled input; the scan reads both and writes the states
        (memory(False, 2, 4 * x + 4 * wide), memory(True, 2, 7 * x + 7 * wide)),
        3 * x + 2 * wide,
        (("decay", (inner,)),),
        (3 * x + 2 * wide) / 2,
    )
    gates = [grouped(f"gate_{name}", heads, s, width, width, kept=name == "input") for name in ("input", "decay")]
    return [*gates, scan]
