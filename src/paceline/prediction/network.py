"""Seconds of one collective on a cluster, by the alpha-beta model: a message of n bytes takes ``alpha + n / bandwidth``.

Two levels: a link inside each node, per device, and the node's network, shared by its devices. Ranks are node-major.
Nothing else loads the links, all devices are equally fast, and switches do not block.

Sources: Hockney 1994, The communication challenge for MPP, Parallel Computing 20(3) (alpha-beta); Thakur, Rabenseifner,
Gropp 2005, Optimization of collective communication operations in MPICH, IJHPCA 19(1) (ring, pairwise exchange); Li et al.
2018, INCEPTIONN, MICRO, Algorithm 1 (the ring of encoded blocks: 2 (N-1) alpha + 2 (N-1)/N n beta);
Sanders, Speck, Traeff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
35(12), which NCCL uses for small messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

import numpy as np

from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Link
from paceline.prediction.efficiency import Efficiency
from paceline.strategy.phase import Phase

Level = Literal["network", "intra-node link"]


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Seconds of a collective and the level that sets them."""

    seconds: float
    level: Level


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes of a phase over the busiest link of each level, in its busier direction.

    Attributes:
        near, far: messages of one rank to others of its node, and of other nodes, in one round.
    """

    intra: int
    network: int
    near: int
    far: int


def link_seconds(link: Link, size: float, messages: float, efficiency: Efficiency) -> float:
    """``messages`` latencies and ``size`` bytes over a link, at the bandwidth that collectives get of it."""
    bandwidth = link.bandwidth.value * efficiency.link_share[link.kind]
    return messages * link.latency.value * efficiency.latency_factor + size / bandwidth


def phase_cost(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Seconds of ``phase`` on every device of ``cluster``; 0 where every rank is alone in its group."""
    if phase.members == 1:
        return PhaseCost(0.0, "intra-node link")
    patterns = {"allreduce": _allreduce, "push": _direct, "pull": _direct, "shift": _shift, "gather": _half, "scatter": _half}
    return patterns[phase.pattern](phase, cluster, efficiency)


def _allreduce(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Of the whole world: a flat ring through all nodes, or two trees where they are faster (NCCL); a CPU has the ring (gloo).

    Every rank sends 2 (N-1)/N n bytes in a ring and at most 2 n in two trees, and each node's network carries one rank's
    worth in each direction, so the slower level sets the bandwidth. A ring chains 2 (N-1) messages, 2 (M-1) of them between
    the M nodes; two trees chain 2 (R-1) in a node of R devices and 2 log2 M between nodes.
    """
    n, nodes, per_node = phase.world_size, cluster.num_nodes, cluster.devices_per_node
    size = max(phase.sizes)
    ring, tree = 2 * (n - 1) / n * size, 2.0 * size
    levels: list[Level] = [*(("intra-node link",) if per_node > 1 else ()), *(("network",) if nodes > 1 else ())]
    links: dict[Level, Link] = {"intra-node link": cluster.intra_link, "network": cluster.network}
    hops: dict[Level, tuple[int, int]] = {
        "intra-node link": (2 * (n - nodes), 2 * (per_node - 1)),
        "network": (2 * (nodes - 1), 2 * ceil(log2(nodes))),
    }

    def total(sent: float, algorithm: int) -> float:
        latency = sum(link_seconds(links[x], 0, hops[x][algorithm], efficiency) for x in levels)
        return latency + max(link_seconds(links[x], sent, 0, efficiency) for x in levels)

    slowest = max(levels, key=lambda x: link_seconds(links[x], ring, hops[x][0], efficiency))
    seconds = total(ring, 0) if cluster.device.kind == "cpu" else min(total(ring, 0), total(tree, 1))
    return PhaseCost(seconds, slowest)


def _half(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """An all-gather or a reduce-scatter of the whole world is half of a ring all-reduce (Thakur et al. 2005, section 4)."""
    whole = Phase("allreduce", phase.sizes, phase.world_size)
    cost = _allreduce(whole, cluster, efficiency)
    return PhaseCost(cost.seconds / 2, cost.level)


def phase_load(phase: Phase, devices_per_node: int) -> Load:
    """Load of the links under a ``push``, a ``pull`` (its mirror) or a ``shift``, for any groups of ranks.

    Let S be the bytes of a group's members in a node and k their number. In a push, into the node go S bytes from each of
    the members elsewhere, out of it the other members' bytes from each of k; inside likewise. In a shift a node's network
    carries what its ranks send to a neighbour in another node: of a flat ring, one rank's messages.
    """
    if phase.members == 1:
        return Load(0, 0, 0, 0)
    groups = phase.groups()
    sizes, node = phase.by_rank()[groups], groups // devices_per_node
    nodes = phase.world_size // devices_per_node
    into, out = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    if phase.pattern == "shift":
        target = np.roll(node, -1, axis=1)
        crosses = node != target
        np.add.at(out, node[crosses], sizes[crosses])
        np.add.at(into, target[crosses], sizes[crosses])
        near = 0 if crosses.all() else 1
        intra = int(sizes[~crosses].max(initial=0))
        return Load(intra, int(max(into.max(), out.max())), near, int(crosses.any()))
    rows = np.broadcast_to(np.arange(len(groups))[:, None], groups.shape)
    count, held = np.zeros((len(groups), nodes), dtype=np.int64), np.zeros((len(groups), nodes), dtype=np.int64)
    np.add.at(count, (rows, node), 1)
    np.add.at(held, (rows, node), sizes)
    into = (held * (phase.members - count)).sum(axis=0)
    out = (count * (held.sum(axis=1, keepdims=True) - held)).sum(axis=0)
    beside, kept = count[rows, node] - 1, held[rows, node] - sizes
    intra = int(max((sizes * beside).max(), kept.max()))
    # Ranks of a node that has fewer members of the group have more of them elsewhere.
    return Load(intra, int(max(into.max(), out.max())), int(beside.max()), int(phase.members - 1 - beside.min()))


def _direct(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Everyone to everyone (or to one); both levels work at once and the slower one sets the time.

    A rank has some messages in flight at once, so latencies add only from round to round; with one message at a time this
    is the pairwise exchange of Thakur et al. 2005.
    """
    load, at_once = phase_load(phase, cluster.devices_per_node), efficiency.concurrent_messages
    intra = network = 0.0
    if load.near:
        intra = link_seconds(cluster.intra_link, load.intra, phase.rounds * ceil(load.near / at_once), efficiency)
    if load.far:
        network = link_seconds(cluster.network, load.network, phase.rounds * ceil(load.far / at_once), efficiency)
    return PhaseCost(network, "network") if network >= intra else PhaseCost(intra, "intra-node link")


def _shift(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Every rank to its right neighbour at once. A message passes the members in turn, so latencies are those of its way:
    ``rounds`` of them, as many of each level as the ring has links of it; the slower level sets the bandwidth.
    """
    load = phase_load(phase, cluster.devices_per_node)
    node = phase.groups()[0] // cluster.devices_per_node
    far = float((node != np.roll(node, -1)).mean())
    latency = link_seconds(cluster.network, 0, phase.rounds * far, efficiency)
    latency += link_seconds(cluster.intra_link, 0, phase.rounds * (1 - far), efficiency)
    network = link_seconds(cluster.network, load.network, 0, efficiency) if load.far else 0.0
    intra = link_seconds(cluster.intra_link, load.intra, 0, efficiency) if load.near else 0.0
    level: Level = "network" if load.far and network >= intra else "intra-node link"
    return PhaseCost(latency + max(network, intra), level)
