"""Cost of reading weights, which inside a network are in slower memory than for a single repeated operation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.slimming.latency.onnx_nodes import OnnxNode, seconds

FURTHEST = 2**26
"""Bytes that exceed every cache here; more weights are read no slower."""
SHARE = 0.02
"""Share of the weights below which an operation is not timed: it takes the rate of the others."""
COPIES = 48


def seconds_per_byte(nodes: Sequence[OnnxNode], weights: Sequence[float], threads: int = 1) -> tuple[float, ...]:
    """Return the seconds that each byte of an operation's weights adds inside the network.

    Each large operation is timed alone, and in turn with copies as large as the network's weights together.

    Args:
        weights: bytes of each operation.
    """
    total = sum(weights)
    known: dict[OnnxNode, float] = {}
    for node, held in zip(nodes, weights, strict=True):
        copies = int(np.clip(round(min(total, FURTHEST) / held), 1, COPIES)) if held else 1
        if held >= SHARE * total and node not in known and copies > 1:
            known[node] = max(seconds(node, threads, copies) - seconds(node, threads), 0.0) / held
    usual = float(np.median(list(known.values()))) if known else 0.0
    return tuple(known.get(node, 0.0 if held >= SHARE * total else usual) for node, held in zip(nodes, weights, strict=True))
