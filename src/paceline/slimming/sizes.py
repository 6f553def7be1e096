"""Bytes of a network's weights without some of its structures."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np

from paceline.slimming.structures import Structures

BYTES = 4
"""Of a weight in fp32."""


def weight_bytes(structures: Structures, removed: Collection[int] = ()) -> float:
    """Of all parameters and buffers, in fp32. Tied ones count once."""
    gone = np.array(sorted(removed), np.int64)
    every = {id(dims): dims for dims in structures.units.values() if dims}  # but for counters
    return float(BYTES * sum(prod(int((~np.isin(structures.forest.roots(u), gone)).sum()) for u in d) for d in every.values()))


__all__ = ["BYTES", "weight_bytes"]
