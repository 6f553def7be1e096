"""Exchange of a network whose experts have different replicas from its other layers: two exchanges on one network.

Gradients of experts are summed among the devices that have the same ones (Megatron-Core: expert data parallelism). Their
buckets are separate, and both kinds are exchanged in the order in which they become ready.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Ints
from paceline.hardware.cluster import Cluster
from paceline.prediction.exchange.exchange_plan import ExchangePlan, Partition, exchange_plan
from paceline.prediction.exchange.exchange_seconds import ExchangeSeconds, priced
from paceline.prediction.exchange.group_view import group_view
from paceline.prediction.passes.layer_roles import is_expert
from paceline.prediction.step.memory import fixed_bytes
from paceline.strategy.compression.formats import PayloadBound
from paceline.strategy.strategy import Strategy
from paceline.workload.prepared import once
from paceline.workload.table import Workload


@dataclass(frozen=True, slots=True)
class ExpertReplicas:
    """The experts of one device, and the devices that have the same ones.

    Attributes:
        workload: the network with the parameters of experts alone.
        cluster: those devices as a separate cluster. ``strategy``: their strategy.
    """

    workload: Workload
    cluster: Cluster
    strategy: Strategy

    def plan(self, level: PayloadBound = "expected") -> ExchangePlan:
        """Plan of their exchange."""
        return exchange_plan(self.workload, self.strategy, self.cluster.places, level)

    def fixed_bytes(self) -> dict[str, float]:
        """Return bytes by purpose on one device that do not grow with the batch. Frozen weights count with the other
        parameters, outside the experts."""
        return fixed_bytes(self.workload, self.strategy, self.plan(), self.cluster.device, divided=True)


def expert_replicas(workload: Workload, cluster: Cluster, strategy: Strategy) -> tuple[Workload, ExpertReplicas | None]:
    """Return the network without the parameters of experts, and the replicas of these.

    If experts have the same replicas as all parameters, return the network itself and None.

    Args:
        workload: the part of one device.
        strategy: strategy of the whole mesh.

    Raises:
        UserError: nodes' boundaries cut the groups unevenly.
    """
    mesh = strategy.parallelism
    if mesh.expert_replicas.data == mesh.replicas.data:
        return workload, None
    rest, experts = _apart(workload)
    if experts is None:
        return workload, None
    own = mesh.expert_replicas
    view = group_view(cluster, own.data, mesh.expert_devices, "replicas of experts")
    return rest, ExpertReplicas(
        experts, view, replace(strategy, global_batch_size=own.data * own.micro_batches, parallelism=own)
    )


@once
def _apart(workload: Workload) -> tuple[Workload, Workload | None]:
    experts = tuple(p for p in workload.parameters if is_expert(workload.layers[p.layer].name))
    if not experts:
        return workload, None
    rest = tuple(p for p in workload.parameters if not is_expert(workload.layers[p.layer].name))
    return replace(workload, parameters=rest), replace(workload, parameters=experts, frozen=0)


def together(rest: ExchangeSeconds, experts: ExchangeSeconds) -> ExchangeSeconds:
    """Join both exchanges into one, whose buckets become ready from the last layer to the first."""
    if not experts.plan.count:
        return rest
    if not rest.plan.count:
        return experts
    both = rest.plan, experts.plan
    # Each exchange keeps the order of its buckets: one never passes another that is late.
    latest = np.concatenate([np.minimum.accumulate(plan.first) for plan in both])
    order = np.argsort(-latest, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    bucket = place[np.concatenate([both[0].bucket, both[1].bucket + both[0].count])]
    pieces = np.argsort(bucket, kind="stable")
    plan = _joined(both, order, bucket[pieces], pieces)
    return priced(
        plan,
        np.concatenate([rest.pieces, experts.pieces])[pieces],
        np.concatenate([rest.network, experts.network])[pieces],
        np.concatenate([rest.gathers, experts.gathers], axis=1)[:, order],
        np.concatenate([rest.gathers_network, experts.gathers_network], axis=1)[:, order],
        np.concatenate([np.broadcast_to(x.copies, x.gathers.shape) for x in (rest, experts)], axis=1)[:, order],
    )


def _joined(both: tuple[ExchangePlan, ExchangePlan], order: Ints, bucket: Ints, pieces: Ints) -> ExchangePlan:
    """Return the joint plan of both exchanges. Its loads remain those of the first, because it is priced already.

    Args:
        order: order of the buckets of both, one plan after the other, (buckets,). ``pieces``: the same of the pieces.
        bucket: bucket of each piece in the new order.
    """
    rest, experts = both
    parts = rest.partition, experts.partition
    layers = (*parts[0].layers, *parts[1].layers)
    partition = Partition(
        tuple(layers[i] for i in order.tolist()),
        (*parts[0].unlike, *parts[1].unlike),
        (*parts[0].frozen, *parts[1].frozen),
        np.concatenate([parts[0].index, parts[1].index + len(parts[0].unlike)])[order],
        np.concatenate([rest.first, experts.first])[order],
        (*parts[0].coded, *parts[1].coded),
    )
    codec = np.concatenate([rest.codec, experts.codec])
    rank = np.cumsum(codec) - 1  # of each codec pass among them
    return replace(
        rest,
        partition=partition,
        traffic=(*rest.traffic, *experts.traffic),
        gathering=(*rest.gathering, *experts.gathering),
        unlike_pieces=(*rest.unlike_pieces, *experts.unlike_pieces),
        order=np.concatenate([rest.order, experts.order + len(rest.unlike_pieces)])[pieces],
        bucket=bucket,
        codec=codec[pieces],
        chunked=np.concatenate([rest.chunked, experts.chunked])[pieces],
        begin=np.searchsorted(bucket, np.arange(len(order))),
        largest=np.concatenate([rest.largest, experts.largest])[order],
        codec_passes=np.concatenate([rest.codec_passes, experts.codec_passes])[rank[pieces][codec[pieces]]],
    )
