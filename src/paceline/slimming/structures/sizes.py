"""Bytes of a network's weights without some of its structures."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np
from torch import nn

from paceline.slimming.structures.structures import Structures

BYTES = 4
"""Bytes of a weight in fp32."""


def weight_bytes(structures: Structures, removed: Collection[int] = ()) -> float:
    """Return the bytes of all parameters and buffers in fp32. Tied ones count once."""
    gone = np.array(sorted(removed), np.int64)
    every = {id(dims): dims for dims in structures.units.values() if dims}  # but for counters
    return float(BYTES * sum(prod(int((~np.isin(structures.forest.roots(u), gone)).sum()) for u in d) for d in every.values()))


def module_bytes(model: nn.Module) -> float:
    """Return the bytes of all parameters and buffers without counters in fp32: ``weight_bytes`` without a trace."""
    return float(BYTES * sum(each.numel() for each in (*model.parameters(), *model.buffers()) if each.dim()))


__all__ = ["BYTES", "module_bytes", "weight_bytes"]
