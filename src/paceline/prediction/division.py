"""What one device has of every layer where tensor and context groups divide the layers, and what it waits for in each.

The pipeline, the replicas and the sharding change nothing here: steps (``parallel_step``) and bounds of very many layouts
(``layout_bounds``) are put together from the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.array_types import Array, Bools
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.prediction.context_parallel import token_share
from paceline.prediction.group_collectives import collective_waits, with_collectives
from paceline.prediction.step_model import PassTimes, StepModel
from paceline.prediction.tensor_parallel import Collective, share
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.strategy import Strategy
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class Divided:
    """What one device has of every layer, before the layers are cut into stages.

    Attributes:
        workload: its part of the layers.
        collectives: of its tensor and context groups; ``waits``: seconds of each, and whether the network sets them.
        passes: seconds of one micro batch by layer, with what the layers wait for the collectives.
    """

    workload: Workload
    collectives: tuple[Collective, ...]
    waits: tuple[Array, Bools]
    passes: PassTimes


def divide(model: StepModel, cluster: Cluster, strategy: Strategy) -> Divided:
    """One device's part of the layers of ``model.workload``. The pipeline, the replicas and the sharding do not change it.

    Raises:
        UserError: a calibration; a precision that the device lacks; heads or widths that do not divide.
    """
    mesh = strategy.parallelism
    if model.calibration is not None:
        raise UserError("a calibration is of data parallelism alone", "leave it out, or give tensor=1 and pipeline=1")
    whole, collectives = shared_layers(model.workload, mesh)
    passes = replace(model, workload=whole).passes(cluster.device, strategy)
    waits = collective_waits(collectives, cluster, strategy, model.constants)
    return Divided(whole, collectives, waits, with_collectives(model, passes, collectives, waits, strategy))


def shared_layers(workload: Workload, mesh: Parallelism) -> tuple[Workload, tuple[Collective, ...]]:
    """One device's part of the layers in its tensor and context groups, and what those exchange. Errors as ``divide``."""
    collectives: tuple[Collective, ...] = ()
    if mesh.context > 1:
        tokens = token_share(workload, mesh.context, mesh.context_exchange)
        workload = tokens.workload
        # Each tensor-parallel device has its heads alone.
        collectives += tuple(replace(c, bytes=c.bytes / mesh.tensor) for c in tokens.collectives)
    if mesh.tensor > 1:
        own_part = share(workload, mesh.tensor, mesh.sequence)
        workload, collectives = own_part.workload, (*collectives, *own_part.collectives)
    return workload, collectives
