"""Choices that determine the work of one device in a layout, and a probe network for the model's bytes per element."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.strategy.context_exchange import ContextExchange
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.recompute import Recompute
from paceline.strategy.sharding import Sharding
from paceline.workload.layers import Parameter
from paceline.workload.prepared import once
from paceline.workload.table import Workload

PROBE = 1 << 26
"""Elements of a tensor in a probe network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSlice:
    """Choices that determine the work of one device on one micro batch, apart from the stages."""

    tensor: int
    sequence: bool
    context: int
    context_exchange: ContextExchange
    precision: str
    micro_batch_size: int
    recompute: Recompute
    expert: int = 1

    @property
    def division(self) -> tuple[Hashable, ...]:
        """Sizes by which the layers are divided."""
        return _division_of(self)

    def mesh(self) -> Parallelism:
        """Mesh that only divides the layers."""
        return Parallelism(data=self.expert, **dict(zip(_DIVISION, _division_of(self), strict=True)))

    @property
    def width(self) -> float:
        """Bytes of a number that the network computes on, relative to fp32."""
        return BYTES_PER_ELEMENT[self.precision] / 4


_DIVISION = tuple(
    field.name for field in fields(LayoutSlice) if field.name in {of.name for of in fields(Parallelism)} - {"recompute"}
)
_division_of: Callable[[LayoutSlice], tuple[Any, ...]] = attrgetter(*_DIVISION)


@dataclass(frozen=True, slots=True)
class Shares:
    """Sharding of the replicas' state: among all of them, or within each node (HSDP)."""

    sharding: Sharding
    in_node: bool = False

    def groups(self, own: LayoutSlice, pipeline: int, cluster: Cluster) -> int | None:
        """Return ``Parallelism.shard_devices``; None if groups within a node do not exist."""
        if not self.in_node:
            return 0
        size, replicas = cluster.devices_per_node // own.tensor, cluster.world_size // (own.tensor * pipeline)
        return size if 1 < size < replicas and replicas % size == 0 and self.sharding.shares_out else None


def with_common(mesh: Parallelism, common: Mapping[str, Any]) -> Parallelism:
    """Return the mesh with the common choices of all layouts of a search (fields of ``Parallelism``) that it can have."""
    for name, value in common.items():
        with suppress(UserError):
            mesh = replace(mesh, **{name: value})
    return mesh


@once
def probe_network(workload: Workload, tensors: int, frozen: int) -> Workload:
    """Return a network of equal tensors, a block each. Its memory reveals the model's bytes per element."""
    parameters = tuple(
        Parameter(name=f"layers.{n}.weight", shape=(PROBE,), layer=0, ready=tensors - 1 - n) for n in range(tensors)
    )
    return replace(workload, layers=workload.layers[:1], parameters=parameters, frozen=frozen)
