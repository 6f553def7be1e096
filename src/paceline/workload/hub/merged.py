"""Layers of a trace whose kernels a GPU runs as fewer ones: rotations, routers, and attention in a sliding window.

The tables by hand count rotations and routers so, and the times of kernels were fitted to those.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.workload.hub.roles import ROUTER
from paceline.workload.layers import Layer, Operation

_WORD = 4.0
_NOTHING = 0.02
"""Share of what attention saves, below which it saves nothing of the products before it. A view saves the whole result of its
product: values do that are one product with queries and keys."""
_SEVERAL = 4  # kernels of a rotation that is not fused, at least
_ROUTES = (3, 5.0), (2, 4.0)
"""Kernels of a router after its product, and times that they move its scores, in each pass (``experts.expert_layers``)."""


def merged(layer: Layer, sliding: int = 0) -> list[Layer]:
    """Return a traced layer with the kernels of a GPU, and what attention saves of the products before it as another layer.

    Args:
        sliding: tokens that its attention sees at most; 0: all.
    """
    if ROUTER.search(layer.kind):
        return [_routing(layer)]
    attention = _turning(layer)
    more = layer.activation_bytes - attention.activation_bytes
    if more <= _NOTHING * layer.activation_bytes:
        return [_windowed(attention, sliding)]
    half = None
    if layer.activation_bytes_half is not None and attention.activation_bytes_half is not None:
        half = layer.activation_bytes_half - attention.activation_bytes_half
    whole = Layer(name=f"{layer.name}.split", kind="Split", operations=(), activation_bytes=more, activation_bytes_half=half)
    return [whole, _windowed(attention, sliding)]


def _routing(layer: Layer) -> Layer:
    scores = next((_WORD * o.m * o.n * o.batch for o in layer.operations if o.kind == "matmul" and not o.backward), 0.0)
    if not scores:
        return layer

    def few(o: Operation) -> Operation:
        calls, times = _ROUTES[o.backward]
        return replace(o, calls=min(o.calls, calls), bytes=min(o.bytes, times * scores)) if o.kind == "memory" else o

    return replace(layer, operations=tuple(map(few, layer.operations)))


def _turning(layer: Layer) -> Layer:
    """Return attention whose rotation of queries and keys is one kernel in each pass."""
    mixing = next((o for o in layer.operations if o.kind == "attention" and not o.backward), None)
    if mixing is None:
        return layer

    sums = _WORD * mixing.m * mixing.batch  # of the softmax
    once = mixing.bytes - sums  # queries and keys are read and written

    def turned(o: Operation) -> Operation:
        return replace(o, calls=1, bytes=once) if o.kind == "memory" and o.calls >= _SEVERAL and o.bytes > once else o

    kept, half = layer.activation_bytes, layer.activation_bytes_half
    return replace(
        layer,
        operations=tuple(map(turned, layer.operations)),
        activation_bytes=min(kept, mixing.bytes),
        activation_bytes_half=None if half is None else min(half, once / 2 + sums),
    )


def _windowed(layer: Layer, tokens: int) -> Layer:
    if not tokens:
        return layer

    def narrowed(o: Operation) -> Operation:
        if o.kind != "attention" or o.n <= tokens:
            return o
        return replace(o, sliding=float(tokens), flops=o.flops * tokens / o.n)

    return replace(layer, operations=tuple(map(narrowed, layer.operations)))
