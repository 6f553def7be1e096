"""Layers of gated linear attention with the delta rule, in chunks of matrix products.

Yang et al. 2024, Gated Delta Networks, arXiv:2412.06464, section 3.3. The chunked form is that of Yang et al. 2024,
Parallelizing Linear Transformers with the Delta Rule, arXiv:2406.06484, section 3. Kernels are those of flash-linear-attention
(``fla/ops/gated_delta_rule/chunk.py``), as Qwen3-Next runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.workload.builders.layer_builders import WORD, LayerSpec, linear, memory, product
from paceline.workload.builders.state_space import WIDE, causal_convolution, check_dimensions, gated_norm
from paceline.workload.layers import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDelta:
    """Dimensions of a block of gated delta rule.

    Attributes:
        key_heads, key_dim: heads of queries and keys, and their width.
        value_heads, value_dim: heads of values, and their width.
        conv: positions of the causal convolution of queries, keys and values.
        chunk: tokens of a chunk.

    Raises:
        UserError: a dimension below 1; heads of keys that do not divide those of values.
    """

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv: int = 4
    chunk: int = 64

    def __post_init__(self) -> None:
        own = self.value_heads, self.value_dim, self.key_heads, self.key_dim, self.conv, self.chunk
        check_dimensions("block of gated delta rule", *own, groups=self.key_heads)

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers over ``s`` tokens, after the norm of their input."""
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        return [
            linear("in", s, hidden, 2 * keys + 2 * values, bias=False),
            linear("in_gates", s, hidden, 2 * self.value_heads, bias=False, kept=False, kept_half=True, sums=1),
            causal_convolution("conv", s, 2 * keys + values, self.conv, bias=False),
            self.scan(s),
            gated_norm("norm", s, values, self.value_dim),
            linear("out", s, values, hidden, bias=False),
        ]

    def scan(self, s: float) -> LayerSpec:
        """Return the chunked scan over ``s`` tokens."""
        c, k, v = min(float(self.chunk), s), float(self.key_dim), float(self.value_dim)
        chunks = s / c
        heads = chunks * self.value_heads
        q, x = WORD * s * self.key_heads * k, WORD * s * self.value_heads * v
        wide = WORD * s * self.value_heads * k  # keys for each head of values
        states, scores, gates = WORD * heads * k * v, WORD * heads * c * c, WIDE * s * 2 * self.value_heads

        def kernels(backward: bool, on_scores: float, on_values: float, on_states: float, moved: float) -> list[Operation]:
            return [
                replace(product(c, c, k, heads, moved / 3, backward, kind="scan"), flops=on_scores * 2 * c * c * k * heads),
                replace(product(c, v, c, heads, moved / 3, backward, kind="scan"), flops=on_values * 2 * c * c * v * heads),
                replace(product(c, v, k, heads, moved / 3, backward, kind="scan"), flops=on_states * 2 * c * k * v * heads),
            ]

        # Products of keys, of queries by keys, and of the inverse by keys; of the inverse and the scores by values; of keys,
        # queries and updates with the states. The inverse of a triangle of C x C is C^3 / 3 multiply-adds for each chunk. The
        # backward pass computes updates and states again, and two gradients for each product.
        inverse = c / (3 * k)
        forward = kernels(False, 3 + inverse, 2, 3, 4 * q + 4 * x + 3 * wide + 2 * states + 4 * scores)
        back = kernels(True, 8 + 2 * inverse, 5, 8, 8 * q + 9 * x + 8 * wide + 5 * states + 8 * scores)
        operations = (*forward, memory(False, 2, 3 * gates + 4 * q), *back, memory(True, 3, 5 * gates + 6 * q))
        weights = (("A_log", (self.value_heads,)), ("dt_bias", (self.value_heads,)))
        held = 2 * q + 2 * x + scores + gates
        return LayerSpec("scan", "Scan", operations, held, weights, held / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """Dimensions of a block of the delta rule with a decay for each channel (Kimi Linear, arXiv:2510.26692, section 3).

    The scan has the products of the gated delta rule; its decays are as wide as the keys.

    Attributes:
        heads, width: heads of queries, keys and values, and their width.
        conv: positions of the causal convolution of queries, keys and values.
        decay_rank: inner width of the product for the decays; 0: one full product.
        gate_rank: the same for the gate of the result.

    Raises:
        UserError: a dimension below 1.
    """

    heads: int
    width: int
    conv: int = 4
    decay_rank: int = 0
    gate_rank: int = 0

    def __post_init__(self) -> None:
        check_dimensions("block of the delta rule", self.heads, self.width, self.conv)

    def layers(self, s: float, hidden: int) -> list[LayerSpec]:
        """Return the layers over ``s`` tokens, after the norm of their input."""
        inner = self.heads * self.width
        rule = GatedDelta(key_heads=self.heads, key_dim=self.width, value_heads=self.heads, value_dim=self.width)
        scan, decays = rule.scan(s), WIDE * s * inner
        first, *rest = [i for i, o in enumerate(scan.operations) if o.kind == "memory"]
        operations = list(scan.operations)
        # the softplus of the decays and their sums within a chunk; their gradients
        operations[first] = replace(operations[first], bytes=operations[first].bytes + 3 * decays)
        operations[rest[0]] = replace(operations[rest[0]], bytes=operations[rest[0]].bytes + 5 * decays)
        scan = replace(
            scan,
            operations=tuple(operations),
            kept=scan.kept + decays,
            kept_half=scan.kept_half + decays / 2,
            weights=(("A_log", (self.heads,)), ("dt_bias", (inner,))),
        )
        return [
            linear("in", s, hidden, 3 * inner, bias=False),
            *self._gate("decay", s, hidden, inner, self.decay_rank),
            linear("in_gates", s, hidden, self.heads, bias=False, kept=False, kept_half=True, sums=1),
            *self._gate("gate", s, hidden, inner, self.gate_rank),
            causal_convolution("conv", s, 3 * inner, self.conv, bias=False),
            scan,
            gated_norm("norm", s, inner, self.width),
            linear("out", s, inner, hidden, bias=False),
        ]

    def _gate(self, name: str, s: float, hidden: int, inner: int, rank: int) -> list[LayerSpec]:
        if not rank:
            return [linear(f"in_{name}", s, hidden, inner, bias=False, kept=False, kept_half=True, sums=1)]
        first = linear(f"in_{name}_narrow", s, hidden, rank, bias=False, kept=False, kept_half=True, sums=1)
        return [first, linear(f"in_{name}", s, rank, inner, bias=False)]
