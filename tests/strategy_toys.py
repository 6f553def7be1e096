"""Small hand-made tensors, and the compressions with the exchanges that carry them."""

from __future__ import annotations

from typing import Any

from paceline.strategy import COMPRESSIONS, EXCHANGES, BucketPlan, Compression, Phase, Traffic, carriers, shard_bounds
from paceline.workload import Parameter

MIB = 2**18
"""fp32 elements."""


def exchanges_of(compression: Compression) -> list[str]:
    """Names of the exchanges that carry a compression on any cluster, the default first."""
    return [exchange.name for exchange in carriers(compression) if not exchange.uses_switch]


def describe(plan: BucketPlan, compression: Compression, exchange: str, *others: Any, **more: Any) -> Traffic:
    """The traffic of a group over an exchange of this name."""
    return EXCHANGES[exchange].describe(plan, compression, *others, **more)


def phases(plan: BucketPlan, compression: Compression, exchange: str, workers: int) -> list[Phase]:
    """The collectives of a group on a flat cluster."""
    return list(describe(plan, compression, exchange, workers).phases)


def owned_bounds(count: int, exchange: str, workers: int, servers: int = 1, block: int = 1) -> list[tuple[int, int]]:
    """Start and stop of the elements that each rank owns in an exchange of this name."""
    return shard_bounds(count, workers, EXCHANGES[exchange].owners(workers, servers), block)


NAMED = [(c.name, e) for c in COMPRESSIONS.values() for e in exchanges_of(c)]
"""Each compression with each exchange that carries it."""


def tensors(*sizes: int) -> list[Parameter]:
    """Flat tensors of so many elements, ready in this order."""
    return [Parameter(name=f"t{i}", shape=(size,), layer=0, ready=i) for i, size in enumerate(sizes)]


WAYS = ["allgather", "parameter_server", "ring", "sharded"]
"""Names of the exchanges of encoded messages between ranks alone."""
