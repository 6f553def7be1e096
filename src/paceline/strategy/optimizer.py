"""Optimizers, described: what they keep and move per parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Optimizer:
    """``state_words``: fp32 values kept per parameter; ``moved_words``: fp32 values read or written per parameter and step;
    ``ops``: kernels per parameter tensor (unfused); ``lr``: the default learning rate of ``paceline train``."""

    name: str
    state_words: int
    moved_words: int
    ops: int
    lr: float


OPTIMIZERS: Mapping[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer("sgd", 0, 3, 1, 0.05),
        Optimizer("momentum", 1, 5, 2, 0.01),
        Optimizer("adam", 2, 7, 6, 0.001),
    )
}
