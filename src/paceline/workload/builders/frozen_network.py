"""A frozen network next to a trained one, such as a text encoder, as one layer with its forward pass alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.workload.layers import FROZEN, Layer, LayerTable, Operation


def frozen_layer(name: str, table: LayerTable) -> Layer:
    """Return a frozen network as one layer: the operations of its forward pass, those of one shape together.

    An encoder gives its last states: it has no product with a vocabulary.
    """
    sums: dict[tuple[Any, ...], Operation] = {}
    for o in (o for layer in table.layers if not layer.is_logits for o in layer.operations if not o.backward):
        key = (o.kind, o.m, o.n, o.k, o.batch, o.grows, o.window, o.causal, o.sliding, o.autocast, o.eager)
        own = sums.get(key)
        sums[key] = o if own is None else _sum(own, o)
    return Layer(name=name, kind=FROZEN, operations=tuple(sums.values()), activation_bytes=0.0, activation_bytes_half=0.0)


def _sum(a: Operation, b: Operation) -> Operation:
    return replace(
        a,
        calls=a.calls + b.calls,
        flops=a.flops + b.flops,
        bytes=a.bytes + b.bytes,
        fixed_bytes=a.fixed_bytes + b.fixed_bytes,
    )
