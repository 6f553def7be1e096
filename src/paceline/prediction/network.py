"""Seconds of one collective on a cluster, by the alpha-beta model: a message of n bytes takes ``alpha + n / bandwidth``.

Two levels: a link inside each node, per device, and the node's network, shared by its devices. Ranks are node-major.
Nothing else loads the links, all devices are equally fast, and switches do not block.

Sources: Hockney 1994, The communication challenge for MPP, Parallel Computing 20(3) (alpha-beta); Thakur, Rabenseifner,
Gropp 2005, Optimization of collective communication operations in MPICH, IJHPCA 19(1) (ring, pairwise exchange);
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
from paceline.strategy.exchange import Phase

Level = Literal["network", "intra-node link"]


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Seconds of a collective and the level that sets them."""

    seconds: float
    level: Level


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes of a push or pull over the busiest link of each level, in its busier direction."""

    intra: int
    network: int


def link_seconds(link: Link, size: float, messages: float, efficiency: Efficiency) -> float:
    """``messages`` latencies and ``size`` bytes over a link, at the bandwidth that collectives get of it."""
    bandwidth = link.bandwidth.value * efficiency.link_share[link.kind]
    return messages * link.latency.value * efficiency.latency_factor + size / bandwidth


def phase_cost(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Seconds of ``phase`` on every device of ``cluster``; 0 for one rank."""
    if phase.world_size == 1:
        return PhaseCost(0.0, "intra-node link")
    return _allreduce(phase, cluster, efficiency) if phase.ring else _direct(phase, cluster, efficiency)


def _allreduce(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """One flat ring through all nodes, or two trees where they are faster (NCCL); a CPU has the ring (gloo).

    Every rank sends 2 (N-1)/N n bytes in a ring and at most 2 n in two trees, and each node's network carries one rank's
    worth in each direction, so the slower level sets the bandwidth. A ring chains 2 (N-1) messages, 2 (M-1) of them between
    the M nodes; two trees chain 2 (R-1) in a node of R devices and 2 log2 M between nodes.
    """
    n, nodes, per_node = phase.world_size, cluster.num_nodes, cluster.devices_per_node
    size = phase.shards[0]
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


def direct_load(shards: tuple[int, ...], devices_per_node: int) -> Load:
    """Load of the links when each rank pushes ``shards[j]`` bytes to every other rank j (or j sends so many: the mirror).

    Into a node of R ranks whose shards add up to S_a go S_a bytes from each of the N-R ranks elsewhere; out of it go the
    shards of the M-1 other nodes from each of its R ranks. That is no more than what enters the node with the biggest
    shards, for R (S - S_a) <= R (M-1) max S_b, so the busiest link is the one into that node; likewise inside a node.
    """
    by_node = np.asarray(shards, dtype=np.int64).reshape(-1, devices_per_node)
    into_device = int(by_node.max()) * (devices_per_node - 1)
    into_node = int(by_node.sum(axis=1).max()) * (by_node.size - devices_per_node)
    return Load(into_device, into_node)


def _direct(phase: Phase, cluster: Cluster, efficiency: Efficiency) -> PhaseCost:
    """Everyone to everyone (or to one); both levels work at once and the slower one sets the time.

    A rank has some messages in flight at once, so latencies add only from round to round; with one message at a time this
    is the pairwise exchange of Thakur et al. 2005.
    """
    load = direct_load(phase.shards, cluster.devices_per_node)
    near, far = cluster.devices_per_node - 1, phase.world_size - cluster.devices_per_node
    intra = network = 0.0
    if near:
        intra = link_seconds(cluster.intra_link, load.intra, ceil(near / efficiency.concurrent_messages), efficiency)
    if far:
        network = link_seconds(cluster.network, load.network, ceil(far / efficiency.concurrent_messages), efficiency)
    return PhaseCost(network, "network") if network >= intra else PhaseCost(intra, "intra-node link")
