"""Lower bounds on the exchange and the update of the stages of very many layouts.

One collective of all bytes takes no longer than several of parts of them, since the time of one is concave in its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.hosts import HostShare
from paceline.hardware.precision import BYTES_PER_ELEMENT
from paceline.prediction.exchange.collective_time import collective_seconds
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.layouts.layout_slices import PROBE
from paceline.prediction.passes.compute import optimizer_seconds
from paceline.prediction.passes.offload import copy_rate, host_update_seconds
from paceline.strategy.buckets import BucketPlan
from paceline.strategy.optimizer import ADAMW, OPTIMIZERS
from paceline.strategy.strategy import Strategy

_GATHERED = {"gather_update": "gathered", "gather_next": "next"}
"""All-gathers outside a micro batch: after the update, or during the next forward pass."""


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Devices that hold the same parameters of a stage.

    Attributes:
        strategy: their strategy. ``view``: these devices as a cluster.
        elements: trained elements of each stage, (stages,).
        share: part of the host of each device, if the optimizer is offloaded.
    """

    strategy: Strategy
    view: Cluster
    elements: Array
    share: HostShare | None = None


def exchange_bounds(groups: Sequence[ReplicaGroup], tensors: Array, e: Efficiency) -> tuple[Array, ...]:
    """Return seconds of each stage, (stages,).

    Entries: the exchange after the last micro batch, that of every micro batch, the update, the all-gathers after it, those
    during the next forward pass, and a copy of gradients to a host, after every micro batch or once. The groups share the
    network, so their seconds add up. Each copies beside the backward pass, so only the largest copy counts.

    Args:
        groups: replicas of the experts of a stage and of its other parameters, or of all of them.
        tensors: trained tensors of each stage, (stages,).
    """
    seconds = {
        when: np.zeros(len(tensors)) for when in ("after", "micro", "update", "gathered", "next", "copied", "copied once")
    }
    for group in groups:
        for when, of_group in _collectives(group, e):
            seconds[when] += of_group
        seconds["update"] += _update(group, e)
        if (replicas := group.strategy.parallelism).offload.optimizer:
            often = "copied" if replicas.sharding.gradients else "copied once"
            seconds[often] = np.maximum(seconds[often], _copied(group, e))
    mesh, first = groups[0].strategy.parallelism, groups[0]
    if not mesh.offload.optimizer:
        owners = 1 if mesh.sharding.weights else max(_owners(group) for group in groups)
        launches = [-(-int(count) // owners) for count in tensors]
        seconds["update"] += [_least_update(first, 0, count, e)[1] for count in launches]
    return tuple(seconds.values())


def _collectives(group: ReplicaGroup, e: Efficiency) -> list[tuple[str, Array]]:
    """Return when each collective runs, and its seconds by stage."""
    inner, workers = group.strategy, group.strategy.world_size
    probe = BucketPlan(PROBE, 1, 0)
    each_micro = inner.parallelism.sharding.gradients
    exchanged = [("micro" if each_micro else "after", phase) for phase in inner.traffic(probe).phases]
    fetched = [(_GATHERED.get(phase.name, "micro"), phase) for phase in inner.gathers(probe)]
    found = []
    for when, phase in (*exchanged, *fetched):
        if phase.pattern not in ("allreduce", "gather", "scatter") or workers == 1:
            continue
        sizes = group.elements * (max(phase.sizes) / PROBE)
        members = group.view if phase.members == workers else group_view(group.view, phase.members, phase.stride)
        found.append((when, collective_seconds(sizes, members, e, halves=phase.pattern != "allreduce")[0]))
    return found


def _owners(group: ReplicaGroup) -> int:
    """Return the number of devices that each update their part."""
    mesh = group.strategy.parallelism
    return mesh.sharers if mesh.sharding.optimizer else 1


def _copied(group: ReplicaGroup, e: Efficiency) -> Array:
    """Return seconds of a copy of the gradients of a device's part to its host by stage."""
    width = BYTES_PER_ELEMENT[group.strategy.precision]
    assert group.share is not None
    rate = copy_rate(group.share, e)
    return np.array([width * (int(n) // _owners(group)) / rate for n in group.elements])


def _update(group: ReplicaGroup, e: Efficiency) -> Array:
    """Return seconds of memory traffic of the update by stage, on the device or on its host."""
    inner, optimizer = group.strategy, OPTIMIZERS[group.strategy.optimizer]
    own = [int(count) // _owners(group) for count in group.elements]
    if inner.parallelism.offload.optimizer:
        assert group.share is not None
        rest = BYTES_PER_ELEMENT[inner.precision], group.share, e, inner.parallelism.offload
        return np.array([host_update_seconds(optimizer, count, *rest) for count in own])
    return np.array([_least_update(group, count, 0, e)[0] for count in own])


def _least_update(group: ReplicaGroup, elements: int, tensors: int, e: Efficiency) -> tuple[float, ...]:
    """Return lower bounds on the seconds of memory traffic and of launches of an update on the device.

    An optimizer of matrices has another one for other tensors, so the faster of both bounds them.
    """
    optimizer, update = OPTIMIZERS[group.strategy.optimizer], group.strategy.weight_update
    kinds = (optimizer, ADAMW) if optimizer.orthogonal else (optimizer,)
    each = [optimizer_seconds(kind, elements, tensors, group.view.device, e, update) for kind in kinds]
    return tuple(map(min, zip(*each, strict=True)))
