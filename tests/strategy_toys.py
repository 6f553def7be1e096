"""Small hand-made tensors, and the compressions with the exchanges that carry them."""

from __future__ import annotations

from paceline.strategy import COMPRESSIONS
from paceline.workload import Parameter

MIB = 2**18
"""fp32 elements."""
NAMED = [(c.name, e) for c in COMPRESSIONS.values() for e in c.exchanges]
"""Each compression with each exchange that carries it."""


def tensors(*sizes: int) -> list[Parameter]:
    """Flat tensors of so many elements, ready in this order."""
    return [Parameter(name=f"t{i}", shape=(size,), layer=0, ready=i) for i, size in enumerate(sizes)]
