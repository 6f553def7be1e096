"""Seconds and bytes of the collectives within the passes of a divided network.

``tensor_parallel``, ``context_parallel`` and ``expert_parallel`` define the collectives. This module prices one micro batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.precision import BYTES_PER_ELEMENT, RECIPES
from paceline.prediction.exchange.collective_time import alltoall_seconds, collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.mesh.tensor_parallel import Collective
from paceline.prediction.step.step_model import PassTimes, StepModel
from paceline.strategy.parallelism import Parallelism
from paceline.strategy.sharding import block
from paceline.strategy.strategy import Strategy

_PIPELINED_SINCE = 2023.25
"""Year since which software exchanges pieces of a product (Transformer Engine #147, in release 0.8; NeMo #6362)."""


def with_collectives(
    model: StepModel, passes: PassTimes, collectives: Sequence[Collective], waits: tuple[Array, Bools], strategy: Strategy
) -> PassTimes:
    """Return the passes including the waits of layers for their groups' collectives (``group_seconds``)."""
    if not collectives:
        return passes
    seconds, far = waits
    # Tuned software cuts a product into pieces that are exchanged while the next one is computed (NVIDIA, Transformer Engine,
    # user buffers; Megatron-Core's tp_comm_overlap, which needs sequence parallelism; torch's async tensor parallelism).
    older = 0 < model.constants.year < _PIPELINED_SINCE
    pipelined = model.constants.level == "tuned" and strategy.parallelism.sequence and not older
    # A zero-bubble pipeline computes the gradients of weights later, so they hide no collective.
    later = strategy.parallelism.schedule.splits_backward
    covered = _beside_other_batches(model, passes, collectives, seconds, strategy)
    added = []
    for backward, part in enumerate(passes):
        near_s, far_s = np.zeros_like(part.flops), np.zeros_like(part.flops)
        kernels = part.kernels.tolist()
        taken = np.zeros_like(part.flops)  # seconds of each layer's kernels that overlap an exchange already
        for index, c in enumerate(collectives):
            if c.backward != bool(backward):
                continue
            wait = float(seconds[index]) - covered.get(index, 0.0) * (1 - model.constants.overlap_penalty)
            hidden = 0.0 if later and c.group == "tensor" else c.beside
            cut = pipelined and c.group == "tensor" and not (c.wide or c.separate)
            beside = 1.0 if cut else hidden
            if beside and model.overlap:
                over = min(wait, max(0.0, kernels[c.layer] * beside - float(taken[c.layer])))
                taken[c.layer] += over
                wait -= over * (1 - model.constants.overlap_penalty)
            (far_s if far[index] else near_s)[c.layer] += wait
        near_s = near_s * ("intra-node link" not in model.free)
        far_s = far_s * ("network" not in model.free)
        added.append(replace(part, near=near_s, far=far_s))
    return added[0], added[1]


def _beside_other_batches(
    model: StepModel, passes: PassTimes, collectives: Sequence[Collective], seconds: Array, strategy: Strategy
) -> dict[int, float]:
    """Return how long the passes of another micro batch overlap each exchange of experts, in seconds.

    The forward pass of one micro batch and the backward pass of another take turns block by block. The exchanges of
    each overlap the kernels of the other. The first forward pass and the last backward pass have no other.
    """
    mesh = strategy.parallelism
    if not mesh.expert_overlap or not model.overlap:
        return {}
    names = [block(f"{layer.name}.") for layer in model.workload.layers]
    kernels = sum((part.kernels for part in passes), start=np.zeros(len(names)))
    room: dict[str, float] = {}
    for name, own in zip(names, kernels.tolist(), strict=True):
        room[name] = room.get(name, 0.0) + own
    asked = [(i, names[c.layer]) for i, c in enumerate(collectives) if c.group == "expert"]
    whole: dict[str, float] = {}
    for i, name in asked:
        whole[name] = whole.get(name, 0.0) + float(seconds[i])
    steady = 1 - 1 / mesh.micro_batches
    return {i: steady * float(seconds[i]) * min(1.0, room[name] / whole[name]) for i, name in asked if whole[name]}


def group_seconds(
    collectives: Sequence[Collective], cluster: Cluster, strategy: Strategy, e: Efficiency
) -> tuple[Array, Bools]:
    """Return seconds of each collective for one micro batch, and whether the network sets them."""
    mesh = strategy.parallelism
    sizes = np.array([c.bytes * strategy.micro_batch_size * width(c, strategy) for c in collectives])
    seconds, far = np.zeros(len(sizes)), np.zeros(len(sizes), dtype=np.bool_)
    for group, view in group_views(cluster, mesh).items():
        for halves in (False, True):
            own = np.array([c.group == group and (c.kind != "allreduce") == halves for c in collectives])
            if own.any() and group == "expert":
                of_group = next(c for c in collectives if c.group == group)
                once = mesh.expert_exchange.once_per_node
                seconds[own], far[own] = alltoall_seconds(
                    sizes[own], view, e, copies=of_group.copies, once_per_node=once, within=of_group.within
                )
            elif own.any():
                seconds[own], far[own] = collective_seconds(sizes[own], view, e, halves=halves)
    return seconds, far


def group_views(cluster: Cluster, mesh: Parallelism) -> dict[str, Cluster]:
    """Return the devices of each kind of group as a cluster. Raises UserError as ``group_view``."""
    groups = {
        "tensor": (mesh.tensor, 1),
        "context": (mesh.context, mesh.tensor),
        "expert_tensor": (mesh.expert_tensor, 1),
        "expert": (mesh.expert, mesh.expert_tensor),
    }
    return {name: group_view(cluster, *sizes, name.replace("_", "-")) for name, sizes in groups.items()}


def width(c: Collective, strategy: Strategy) -> float:
    """Return bytes of a collective's elements, of fp32's four. Sums are never quantised (Transformer Engine, quantized
    all-gather)."""
    if c.wide:
        return 1.0
    recipe = RECIPES.get(strategy.precision)
    return (recipe.operand if recipe and c.operand else BYTES_PER_ELEMENT[strategy.precision]) / 4


def group_work(collectives: Sequence[Collective], each_s: Array, strategy: Strategy) -> dict[int, tuple[float, float]]:
    """Return seconds of the groups' collectives of each layer in a step, and the bytes that a device sends for them."""
    mesh = strategy.parallelism
    members = {name: getattr(mesh, name) for name in ("tensor", "context", "expert", "expert_tensor")}
    work: dict[int, tuple[float, float]] = {}
    factors: dict[tuple[str, bool, bool, bool], float] = {}
    for c, seconds in zip(collectives, each_s.tolist(), strict=True):
        alike = c.group, c.wide, c.operand, c.kind == "allreduce"
        factor = factors.get(alike)
        if factor is None:
            sent = width(c, strategy) * (2 if c.kind == "allreduce" else 1) * (1 - 1 / members[c.group])
            factor = factors[alike] = sent * strategy.micro_batch_size * mesh.micro_batches
        before = work.get(c.layer, (0.0, 0.0))
        work[c.layer] = before[0] + seconds * mesh.micro_batches, before[1] + c.bytes * factor
    return work
