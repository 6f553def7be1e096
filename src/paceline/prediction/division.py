"""What one device has of every layer where tensor and context groups divide the layers, and what it waits for in each.

The pipeline, the replicas and the sharding change nothing here: steps (``parallel_step``) and bounds of very many layouts
(``layout_bounds``) are put together from the same parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.constants import Efficiency
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import BYTES_PER_ELEMENT
from paceline.prediction.context_parallel import token_share
from paceline.prediction.group_view import group_view
from paceline.prediction.network import collective_seconds
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
    waits = _collective_seconds(collectives, cluster, strategy, model.constants)
    return Divided(whole, collectives, waits, _with_collectives(model, passes, collectives, waits, strategy))


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


def _with_collectives(
    model: StepModel, passes: PassTimes, collectives: Sequence[Collective], waits: tuple[Array, Bools], strategy: Strategy
) -> PassTimes:
    """The passes with what their layers wait for the groups' collectives, which take ``waits`` (``_collective_seconds``)."""
    if not collectives:
        return passes
    seconds, far = waits
    # Tuned software cuts a product into pieces that are exchanged while the next one is computed (NVIDIA, Transformer Engine,
    # user buffers; Megatron-Core's tp_comm_overlap, which needs sequence parallelism; torch's async tensor parallelism).
    pipelined = model.constants.level == "tuned" and strategy.parallelism.sequence
    added = []
    for backward, part in enumerate(passes):
        near_s, far_s = np.zeros_like(part.flops), np.zeros_like(part.flops)
        taken = np.zeros_like(part.flops)  # of each layer's kernels, seconds beside which something is exchanged already
        for index, c in enumerate(collectives):
            if c.backward != bool(backward):
                continue
            wait = float(seconds[index])
            beside = 1.0 if pipelined and c.group == "tensor" and not c.wide else c.beside
            if beside and model.overlap:
                over = min(wait, max(0.0, float(part.kernels[c.layer]) * beside - float(taken[c.layer])))
                taken[c.layer] += over
                wait -= over * (1 - model.constants.overlap_penalty)
            (far_s if far[index] else near_s)[c.layer] += wait
        near_s = near_s * ("intra-node link" not in model.free)
        far_s = far_s * ("network" not in model.free)
        added.append(replace(part, near=near_s, far=far_s))
    return added[0], added[1]


def _collective_seconds(
    collectives: Sequence[Collective], cluster: Cluster, strategy: Strategy, e: Efficiency
) -> tuple[Array, Bools]:
    """Seconds of each for one micro batch, and whether the network sets them."""
    mesh, width = strategy.parallelism, BYTES_PER_ELEMENT[strategy.precision]
    groups = {"tensor": (mesh.tensor, 1), "context": (mesh.context, mesh.tensor)}
    sizes = np.array([c.bytes * strategy.micro_batch_size * (1.0 if c.wide else width / 4) for c in collectives])
    seconds, far = np.zeros(len(sizes)), np.zeros(len(sizes), dtype=np.bool_)
    for group, (members, stride) in groups.items():
        view = group_view(cluster, members, stride)
        for halves in (False, True):
            own = np.array([c.group == group and (c.kind != "allreduce") == halves for c in collectives])
            if own.any():
                seconds[own], far[own] = collective_seconds(sizes[own], view, e, halves=halves)
    return seconds, far


def group_work(collectives: Sequence[Collective], each_s: Array, strategy: Strategy) -> dict[int, tuple[float, float]]:
    """Seconds of the groups' collectives of each layer in a step, and bytes that a device sends for them."""
    mesh, width = strategy.parallelism, BYTES_PER_ELEMENT[strategy.precision] / 4
    members = {"tensor": mesh.tensor, "context": mesh.context}
    work: dict[int, tuple[float, float]] = {}
    for c, seconds in zip(collectives, each_s.tolist(), strict=True):
        size = c.bytes * (1.0 if c.wide else width) * (2 if c.kind == "allreduce" else 1) * (1 - 1 / members[c.group])
        before = work.get(c.layer, (0.0, 0.0))
        sent = size * strategy.micro_batch_size * mesh.micro_batches
        work[c.layer] = before[0] + seconds * mesh.micro_batches, before[1] + sent
    return work
