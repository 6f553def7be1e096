"""Embedding tables that are divided among all devices, as in recommenders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingTables:
    """Embedding tables of which a step reads and updates few rows.

    Each device has a part of them, looks rows up for the samples of all devices, and sends every device the vectors of its
    samples; gradients of the vectors come back the same way (Mudigere et al. 2022, arXiv:2104.05158, section 4). The update of
    the rows belongs to the backward pass of their layer: none of their rows is an exchanged parameter.

    Attributes:
        layer: index of the layer that looks rows up.
        elements: elements of all tables together. ``state``: numbers of optimizer state for each of them.
        optimizer: name of the optimizer of their rows, independent of that of the parameters.
        bytes: bytes of the vectors of one sample at fp32.
    """

    layer: int
    elements: int
    bytes: float
    state: float = 0.0
    optimizer: str = "SGD"
