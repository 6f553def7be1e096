"""Attention from its dimensions, as a fused kernel or with its scores written to memory.

A fused kernel keeps its scores on the chip and computes them again in the backward pass (Dao et al. 2022, arXiv:2205.14135).
Otherwise, as in eager PyTorch, the product, its scale, the mask, the softmax and dropout each read and write them. Bytes are
those of fp32, sizes are per sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from paceline.errors import UserError
from paceline.workload.builders.layer_builders import HALF, MASK, WORD, LayerSpec, memory, product
from paceline.workload.layers import Layer, LayerTable, Operation

Table = TypeVar("Table", bound=LayerTable)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Sliding window of blocks whose tokens attend only to the nearest ones (Beltagy et al. 2020, Longformer, arXiv:2004.05150,
    section 3.1).

    Attributes:
        tokens: most tokens that each token attends to, itself and earlier ones.
        full_every: interval of blocks that attend to all tokens, the last of each interval; 0: none.

    Raises:
        UserError: fewer than one token.
    """

    tokens: int
    full_every: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.full_every < 0:
            raise UserError(
                f"no sliding window has {self.tokens} tokens, with all in every {self.full_every} blocks",
                "give at least 1 token, and 0 or more blocks",
            )

    def of_block(self, number: int) -> int:
        """Return the most tokens that a token attends to in a block, counted from 0; 0 for all."""
        return 0 if self.full_every and (number + 1) % self.full_every == 0 else self.tokens


def attention(
    name: str,
    queries: float,
    keys: float,
    heads: int,
    kv_heads: int,
    width: int,
    *,
    fused: bool = True,
    drop: bool = True,
    causal: bool = False,
    value_width: int = 0,
    sliding: int = 0,
) -> LayerSpec:
    """Return attention: softmax of queries by keys, times values. Both products count in full, causal or not; a fused causal
    kernel computes half of the scores.

    Heads that share keys and values (Ainslie et al. 2023, arXiv:2305.13245) read them once. Values may have another
    ``value_width`` than queries and keys; the operations have the mean of both, whose FLOPs are the same.

    Args:
        sliding: keys that each query sees at most, as ``Operation.sliding``; 0: all. Scores that are written are all written,
            and masked.
    """
    deep, wide = float(width), float(value_width or width)
    d = (deep + wide) / 2
    q, kv, sums = WORD * queries * heads * d, WORD * keys * kv_heads * d, WORD * queries * heads
    shape = (queries, keys, d, float(heads))
    seen = float(sliding) if 0 < sliding < keys else 0.0
    forward = product(*shape, 2 * q + 2 * kv + sums, False, kind="attention")
    back = product(*shape, 4 * q + 4 * kv + sums, True, kind="attention")
    # the scores again, the gradients of queries and keys; those of the scores and of the values
    times = 2.0, (3 * deep + 2 * wide) / d
    share = seen / keys if seen else 1.0
    forward, back = (
        replace(o, flops=share * by * o.flops, causal=causal, sliding=seen)
        for o, by in zip((forward, back), times, strict=True)
    )
    spec = LayerSpec(name, "Attention", (forward, back), 2 * q + 2 * kv + sums, kept_half=q + kv + sums)
    if fused:
        return spec
    more, more_half = _scores_bytes(forward, drop)
    operations = _eager_operations(spec.operations, drop)
    return replace(spec, operations=operations, kept=spec.kept + more, kept_half=spec.kept_half + more_half)


def _eager_operations(operations: Sequence[Operation], drop: bool, fused_softmax: bool = False) -> tuple[Operation, ...]:
    """Return the operations with kernels of fused attention replaced by those that write the scores.

    Args:
        drop: True if dropout applies to the weights of attention.
        fused_softmax: as for ``eager``.
    """
    return tuple(x for o in operations for x in (_written(o, drop, fused_softmax) if o.kind == "attention" else (o,)))


def _written(o: Operation, drop: bool, fused_softmax: bool) -> tuple[Operation, ...]:
    """Return the operations that replace one fused kernel if scores are in memory."""
    q, sums, times = WORD * o.m * o.k * o.batch, WORD * o.m * o.batch, 4 if o.backward else 2
    kv = max(0.0, (o.bytes / o.calls - sums) / times - q)  # a fused kernel reads or writes both, and q, so many times
    scores = o.m * o.n * o.batch
    p, calls = WORD * scores, o.calls
    dropped = (2 * WORD + MASK) * scores if drop else 0.0
    moved, (kernels, forth, back) = q + kv + p, (1, 2 * p, 3 * p) if fused_softmax else (3, 6 * p, 7 * p)
    if not o.backward:
        return (
            product(o.m, o.n, o.k, o.batch, moved, False, calls),
            product(o.m, o.k, o.n, o.batch, moved, False, calls),
            memory(False, calls * (kernels + drop), calls * (forth + dropped)),
        )
    return (
        product(o.m, o.n, o.k, o.batch, moved, True, calls),  # of the attention weights
        product(o.n, o.k, o.m, o.batch, moved, True, 2 * calls),  # of values and keys
        product(o.m, o.k, o.n, o.batch, moved, True, calls),  # of queries
        memory(True, calls * (kernels + drop), calls * (back + dropped)),
    )


def _scores_bytes(forward: Operation, drop: bool) -> tuple[float, float]:
    """Return the bytes that are kept beyond those of the fused kernel, at fp32 and under autocast.

    Softmax saves its result at fp32; under autocast the next product saves a 16-bit copy, with or without dropout."""
    scores, sums = forward.m * forward.n * forward.batch, WORD * forward.m * forward.batch
    p, mask = WORD * scores, MASK * scores if drop else 0.0
    return forward.calls * (p + (p if drop else 0.0) + mask - sums), forward.calls * (p + HALF * scores + mask - sums)


def eager(table: Table, *, fused_softmax: bool = False) -> Table:
    """Return the network with the scores of its attention written to memory; the table itself without fused attention.

    Dropout applies to the weights of attention if the network has dropout anywhere, unless it says otherwise.

    Args:
        fused_softmax: whether scale, mask and softmax are one kernel (Megatron-LM, ``fused_kernels``; apex,
            ``contrib.multihead_attn``), not three.
    """
    if not table.fuses_attention:
        return table
    drop = table.drops_scores and any(layer.kind == "Dropout" for layer in table.layers)
    return replace(table, layers=tuple(_eager_layer(layer, drop, fused_softmax) for layer in table.layers))


def _eager_layer(layer: Layer, drop: bool, fused_softmax: bool) -> Layer:
    fused = [o for o in layer.operations if o.kind == "attention" and not o.backward]
    operations = _eager_operations(layer.operations, drop, fused_softmax)
    if not fused:
        return replace(layer, operations=operations)
    more, more_half = (sum(sizes) for sizes in zip(*(_scores_bytes(o, drop) for o in fused), strict=True))
    half = layer.activation_bytes_half
    return replace(
        layer,
        kind="Attention",  # whatever the module is called: what saves scores goes by it
        operations=operations,
        activation_bytes=layer.activation_bytes + more,
        activation_bytes_half=None if half is None else half + more_half,
    )
