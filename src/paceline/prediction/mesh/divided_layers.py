"""One device's part of every layer under tensor, context and expert groups, and its waits in each layer.

The pipeline, the replicas and the sharding do not change this part. Steps (``mesh_step``) and bounds of very many layouts
(``layout_bounds``) are built from it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from paceline.array_types import Array, Bools
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.mesh.context_parallel import token_share
from paceline.prediction.mesh.expert_parallel import expert_share
from paceline.prediction.mesh.group_collectives import group_seconds, group_views, with_collectives
from paceline.prediction.mesh.tensor_parallel import Collective, share
from paceline.prediction.step.step_model import PassTimes, StepModel
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import Prepared, once_by
from paceline.workload.table import Workload


@dataclass(frozen=True, eq=False)
class Divided(Prepared):
    """One device's part of every layer, before the layers are cut into stages.

    Attributes:
        workload: its part of the layers.
        collectives: collectives of its tensor, context and expert groups. ``waits``: seconds of each, and if of the network.
        passes: seconds of one micro batch by layer, including the waits for the collectives.
        uneven: layers that take longer on the device whose experts get most tokens.
    """

    workload: Workload
    collectives: tuple[Collective, ...]
    waits: tuple[Array, Bools]
    passes: PassTimes
    uneven: frozenset[int]


def divide(model: StepModel, cluster: Cluster, strategy: Strategy) -> Divided:
    """Return one device's part of the layers of ``model.workload``. Pipeline, replicas and sharding do not change it.

    Raises:
        UserError: a calibration; a precision that the device lacks; heads or widths that do not divide.
    """
    if model.workload.tables is not None:
        raise UserError(
            f"{model.workload.name} on groups of devices: its tables are divided among all devices already",
            "give tensor=1, pipeline=1 and context=1",
        )
    if model.calibration is not None:
        raise UserError("a calibration is of data parallelism alone", "leave it out, or give tensor=1 and pipeline=1")
    shared_layers(model.workload, strategy.parallelism)  # refuses what does not divide before groups that do not fit a node
    return _divided(model.workload, model, cluster, strategy)


def _determining(model: StepModel, cluster: Cluster, strategy: Strategy) -> Hashable:
    """Return what the parts and the waits of all layers depend on, apart from the workload."""
    mesh = strategy.parallelism
    views = tuple(group_views(cluster, mesh).values())
    work = strategy.micro_batch_size, strategy.precision, strategy.memory_format, mesh.schedule.splits_backward
    once_a_step = mesh.micro_batches if mesh.expert_overlap or model.constants.level == "tuned" else 0
    chosen = model.constants, model.overlap, model.free, mesh.expert_overlap, once_a_step
    return cluster.device, views, _divides(mesh), work, chosen


@once_by(_determining, most=256)
def _divided(workload: Workload, model: StepModel, cluster: Cluster, strategy: Strategy) -> Divided:
    mesh = strategy.parallelism
    if mesh.expert_devices > 1 and "expert imbalance" in model.free:
        mesh = replace(mesh, expert_imbalance=1.0)
    whole, collectives, uneven = shared_layers(workload, mesh)
    passes = replace(model, workload=whole).passes(cluster.device, strategy)
    waits = group_seconds(collectives, cluster, strategy, model.constants)
    waited = with_collectives(model, passes, collectives, waits, strategy)
    return Divided(whole, collectives, waits, waited, uneven)


def _divides(mesh: Parallelism) -> tuple[Hashable, ...]:
    """Return the choices that divide the layers."""
    tokens = mesh.context, mesh.context_exchange
    experts = mesh.expert, mesh.expert_tensor, mesh.expert_imbalance, mesh.expert_exchange
    return *tokens, mesh.tensor, mesh.sequence, *experts


@once_by(_divides, most=64)
def shared_layers(workload: Workload, mesh: Parallelism) -> tuple[Workload, tuple[Collective, ...], frozenset[int]]:
    """Return one device's part of the layers, the exchanges of its groups, and the layers of uneven experts.

    Raises as ``divide``.
    """
    collectives: tuple[Collective, ...] = ()
    if mesh.context > 1:
        tokens = token_share(workload, mesh.context, mesh.context_exchange)
        workload = tokens.workload
        # Each tensor-parallel device has only its own heads.
        collectives += tuple(replace(c, bytes=c.bytes / mesh.tensor) for c in tokens.collectives)
    if mesh.tensor > 1:
        own_part = share(workload, mesh.tensor, mesh.sequence)
        workload, collectives = own_part.workload, (*collectives, *own_part.collectives)
    uneven: frozenset[int] = frozenset()
    if mesh.expert_devices > 1:
        experts = expert_share(workload, mesh)
        workload, collectives, uneven = experts.workload, (*collectives, *experts.collectives), experts.uneven
    return workload, collectives, uneven
