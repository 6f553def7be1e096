"""Seconds that no exchange of gradients and weights, and no update, undercuts in a layout: all bytes of a stage at once."""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.layouts.layout_slices import PROBE
from paceline.prediction.passes.compute import optimizer_seconds
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.optimizer import OPTIMIZERS
from paceline.strategy.strategy import Strategy

_GATHERED = {"gather_update": "gathered", "gather_next": "next"}
"""All-gathers that are no part of a micro batch: behind the update, or beside the next forward pass."""


def exchange_bounds(
    inner: Strategy, view: Cluster, e: Efficiency, elements: tuple[Array, Array, Array], expert_replicas: int
) -> tuple[Array, ...]:
    """Seconds of each stage, (stages,): of what is exchanged after the last micro batch, of what every micro batch exchanges,
    of the update, of the all-gathers behind it and of those beside the next forward pass.

    Args:
        inner: what the replicas of a stage see; ``view``: these replicas as a cluster.
        elements: trained elements, tensors and elements of experts of each stage. Experts have replicas of their own
            (``expert_replicas``), and their exchange is left out.
    """
    trained, tensors, experts = elements
    mesh, workers = inner.parallelism, inner.world_size
    level = mesh.shares
    probe = BucketPlan(PROBE, 1, 0)
    seconds = {when: np.zeros(len(trained)) for when in ("after", "micro", "update", "gathered", "next")}
    exchanged = [("micro" if level.gradients else "after", phase) for phase in inner.traffic(probe).phases]
    fetched = [(_GATHERED.get(phase.name, "micro"), phase) for phase in inner.gathers(probe)]
    for when, phase in (*exchanged, *fetched):
        if phase.pattern not in ("allreduce", "gather", "scatter") or workers == 1:
            continue
        sizes = (trained - experts) * (max(phase.sizes) / PROBE)
        group = view if phase.members == workers else group_view(view, phase.members, phase.stride)
        seconds[when] += collective_seconds(sizes, group, e, halves=phase.pattern != "allreduce")[0]
    owners = max(mesh.sharers, expert_replicas if experts.any() else 1) if level.optimizer else 1
    for stage in range(len(trained) if mesh.offload == "none" else 0):  # else the host updates
        count = -(-int(tensors[stage]) // (1 if level.weights else owners))
        own = int(trained[stage]) // owners
        seconds["update"][stage] = sum(optimizer_seconds(OPTIMIZERS[inner.optimizer], own, count, view.device, e))
    return tuple(seconds.values())
