"""Seconds and bytes of what the devices of a tensor or context group exchange within the passes, and what is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.array_types import Array, Bools
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import BYTES_PER_ELEMENT
from paceline.prediction.group_view import group_view
from paceline.prediction.network import collective_seconds
from paceline.prediction.step_model import PassTimes, StepModel
from paceline.prediction.tensor_parallel import Collective
from paceline.strategy.strategy import Strategy


def with_collectives(
    model: StepModel, passes: PassTimes, collectives: Sequence[Collective], waits: tuple[Array, Bools], strategy: Strategy
) -> PassTimes:
    """The passes with what their layers wait for the groups' collectives, which take ``waits`` (``collective_waits``)."""
    if not collectives:
        return passes
    seconds, far = waits
    # Tuned software cuts a product into pieces that are exchanged while the next one is computed (NVIDIA, Transformer Engine,
    # user buffers; Megatron-Core's tp_comm_overlap, which needs sequence parallelism; torch's async tensor parallelism).
    pipelined = model.constants.level == "tuned" and strategy.parallelism.sequence
    # A zero-bubble pipeline runs the gradients of weights later, so no collective hides beside them.
    later = strategy.parallelism.schedule == "zero_bubble"
    added = []
    for backward, part in enumerate(passes):
        near_s, far_s = np.zeros_like(part.flops), np.zeros_like(part.flops)
        taken = np.zeros_like(part.flops)  # of each layer's kernels, seconds beside which something is exchanged already
        for index, c in enumerate(collectives):
            if c.backward != bool(backward):
                continue
            wait = float(seconds[index])
            hidden = 0.0 if later and c.group == "tensor" else c.beside
            beside = 1.0 if pipelined and c.group == "tensor" and not c.wide else hidden
            if beside and model.overlap:
                over = min(wait, max(0.0, float(part.kernels[c.layer]) * beside - float(taken[c.layer])))
                taken[c.layer] += over
                wait -= over * (1 - model.constants.overlap_penalty)
            (far_s if far[index] else near_s)[c.layer] += wait
        near_s = near_s * ("intra-node link" not in model.free)
        far_s = far_s * ("network" not in model.free)
        added.append(replace(part, near=near_s, far=far_s))
    return added[0], added[1]


def collective_waits(
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
