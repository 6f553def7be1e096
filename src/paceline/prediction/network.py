"""Seconds of one collective on a cluster, by the alpha-beta model: a message of n bytes takes ``alpha + n / bandwidth``.

Two levels: a link inside each node, per device, and the node's network, shared by its devices. Ranks are node-major.
Nothing else loads the links, all devices are equally fast, and switches do not block. An engine's own collectives take the
algorithm (``ALGORITHMS``) and the protocol (``protocols.py``) that are fastest for their size.

Sources: Hockney 1994, The communication challenge for MPP, Parallel Computing 20(3) (alpha-beta); Thakur, Rabenseifner,
Gropp 2005, Optimization of collective communication operations in MPICH, IJHPCA 19(1) (ring, pairwise exchange); Li et al.
2018, INCEPTIONN, MICRO, Algorithm 1 (the ring of encoded blocks: 2 (N-1) alpha + 2 (N-1)/N n beta);
Sanders, Speck, Traeff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
35(12), which NCCL uses for small messages; NVIDIA, NCCL src/graph/tuning.cc (the steps of each level); Goyal et al. 2017,
Accurate, Large Minibatch SGD, section 4 (hierarchical: reduce in a node, all-reduce between, gather in a node).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.calibration.constants import Efficiency
from paceline.calibration.protocols import BARE
from paceline.hardware.cluster import Cluster
from paceline.strategy.phase import Phase

Algorithm = Literal["ring", "tree", "switch", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "switch")
"""What an engine chooses from; ``hierarchical`` is what some frameworks do above it."""
NOTHING = (4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
"""The row of a phase in which every rank is alone."""


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


@dataclass(frozen=True, slots=True)
class Loads:
    """Phases as numbers for nodes of one size, each array of shape (phases,): what does not depend on how fast links are.

    Attributes:
        pattern: 0 all-reduce, 1 all-gather or reduce-scatter, 2 push or pull, 3 shift, 4 nothing to send.
        size: of the buffer of an engine's collective.
        intra, network: bytes of the others over the busiest link of each level.
        near, far: their messages a round, or the share of a ring's links that lie in each level; ``rounds``.
    """

    pattern: Ints
    size: Array
    intra: Array
    network: Array
    near: Array
    far: Array
    rounds: Array

    @classmethod
    def of(cls, rows: Array) -> Loads:
        """From ``load_rows``, or some of them."""
        return cls(rows[:, 0].astype(np.int64), *rows[:, 1:].T)


@dataclass(frozen=True, slots=True)
class AlgorithmCost:
    """One algorithm with one protocol: seconds of each level are ``fixed + size * per_byte``, and bytes of both pass at once.

    ``serial``: the levels follow each other.
    """

    intra_s: float
    network_s: float
    intra_per_byte: float
    network_per_byte: float
    serial: bool = False


def loads(phases: Sequence[Phase], devices_per_node: int) -> Loads:
    """The phases' numbers. The slow part of their cost; it is worth keeping."""
    return Loads.of(load_rows(phases, devices_per_node))


def load_rows(phases: Sequence[Phase | None], devices_per_node: int) -> Array:
    """A row of ``Loads`` for each phase (phases, 7); nothing is sent in one that is None."""
    rows = [NOTHING if phase is None else _row(phase, devices_per_node) for phase in phases]
    return np.array(rows, dtype=np.float64).reshape(-1, 7)


def _row(phase: Phase, devices_per_node: int) -> tuple[float, ...]:
    size = max(phase.sizes)
    if phase.members == 1:
        return NOTHING
    if phase.pattern in ("allreduce", "gather", "scatter"):
        return (0 if phase.ring else 1, size, 0, 0, 0, 0, 0)
    load = phase_load(phase, devices_per_node)
    if phase.pattern == "shift":
        node = phase.groups()[0] // devices_per_node
        far = float((node != np.roll(node, -1)).mean())
        return (3, 0, load.intra, load.network, 1 - far, far, phase.rounds)
    return (2, 0, load.intra, load.network, load.near, load.far, phase.rounds)


def phase_seconds(table: Loads, cluster: Cluster, efficiency: Efficiency) -> tuple[Array, Bools]:
    """Seconds of every phase, and whether the network sets them rather than the link inside a node.

    An engine's collective takes its fastest way. Of messages to all (push, pull) both levels work at once and the slower one
    sets the time; a rank has some messages in flight at once, so latencies add only from round to round (with one at a time
    this is the pairwise exchange of Thakur et al. 2005). Of a shift a message passes the members in turn, so latencies are
    those of its way, ``rounds`` of them, as many of each level as the ring has links of it; the slower level sets the
    bandwidth.
    """
    near, far = cluster.intra_link, cluster.network
    alpha = [link.latency.value * efficiency.latency_factor for link in (near, far)]
    beta = [1 / efficiency.bandwidth(link) for link in (near, far)]
    intra, network = table.intra * beta[0], table.network * beta[1]
    direct = table.pattern == 2
    if direct.any():
        at_once = efficiency.concurrent_messages
        intra = np.where(direct, intra + table.rounds * np.ceil(table.near / at_once) * alpha[0], intra)
        network = np.where(direct, network + table.rounds * np.ceil(table.far / at_once) * alpha[1], network)
    seconds, by_network = np.maximum(intra, network), network >= intra
    shift = table.pattern == 3
    if shift.any():
        seconds = seconds + shift * table.rounds * (table.far * alpha[1] + table.near * alpha[0])
        by_network &= ~shift | (table.network > 0)
    for code, halves in ((0, False), (1, True)):
        own = table.pattern == code
        if own.any():
            times, level = collective_seconds(table.size[own], cluster, efficiency, halves=halves)
            seconds[own], by_network[own] = times, level
    by_network &= table.pattern != 4
    return seconds, by_network


def collective_seconds(
    sizes: Array, cluster: Cluster, efficiency: Efficiency, *, halves: bool = False, among: Sequence[Algorithm] = ALGORITHMS
) -> tuple[Array, Bools]:
    """Seconds of an all-reduce of ``sizes`` bytes among all devices, and whether the network sets them.

    Args:
        halves: an all-gather or a reduce-scatter instead: half of a ring (Thakur et al. 2005, section 4).
        among: which algorithms the engine may choose from. A CPU has the ring (gloo).
    """
    if cluster.world_size == 1:
        return np.zeros_like(sizes), np.zeros(len(sizes), dtype=np.bool_)
    cpu = cluster.device.kind == "cpu"
    ways = list(
        _algorithm_costs(
            cluster, efficiency, ("ring",) if halves or (cpu and among == ALGORITHMS) else among, 1 if halves else 2
        )
    )
    table = np.array([(w.intra_s, w.network_s, w.intra_per_byte, w.network_per_byte, w.serial) for w in ways])
    volume = np.asarray(sizes, dtype=np.float64)[:, None]
    intra, network = volume * table[:, 2], volume * table[:, 3]
    total = table[:, 0] + table[:, 1] + np.where(table[:, 4] > 0, intra + network, np.maximum(intra, network))
    best, rows = total.argmin(axis=1), np.arange(len(volume))
    level = (network + table[:, 1] > intra + table[:, 0])[rows, best]
    return total[rows, best], level


def _algorithm_costs(
    cluster: Cluster, efficiency: Efficiency, among: Sequence[Algorithm], turns: int = 2
) -> Iterator[AlgorithmCost]:
    """Every algorithm with every protocol that the cluster's links carry.

    Of n bytes on M nodes of R devices, N = M R. Ring: each rank sends 2 (N-1)/N n, each node's network carries one rank's worth
    in each direction, and 2 (N-1) messages follow each other, 2 (M-1) of them between nodes. Two trees: at most 2 n, 2 (R-1)
    messages in a node and 2 log2 M between nodes. Switch: each device sends n and gets its part of the sum, n / R, on the
    way there and the reverse on the way back; nodes are joined by trees, or by their own switch, which takes n and gives n.
    Hierarchical: 2 (R-1)/R n inside, then 2 (M-1)/M n between nodes, over all of a node's devices at once. ``turns``: of the
    ring; one is an all-gather or a reduce-scatter.
    """
    n, nodes, local = cluster.world_size, cluster.num_nodes, cluster.devices_per_node
    near, far = cluster.intra_link, cluster.network
    protocols = BARE if cluster.device.kind == "cpu" else efficiency.protocols
    depth = 2 * ceil(log2(nodes))
    ring = turns * (n - 1) / n
    for p in protocols:
        if (local > 1 and near.kind not in p.share) or (nodes > 1 and far.kind not in p.share):
            continue
        alpha, tree = (
            [x.latency.value * efficiency.latency_factor * of.get(x.kind, 1.0) for x in (near, far)]
            for of in (p.latency, p.tree_latency)
        )
        beta = [1 / (efficiency.bandwidth(x) * p.share.get(x.kind, 1.0)) for x in (near, far)]
        inside, between = beta[0] * (local > 1), beta[1] * (nodes > 1)
        base = p.ring_s * efficiency.latency_factor, p.tree_s * efficiency.latency_factor
        if "ring" in among:
            hops = turns * (n - nodes), turns * (nodes - 1)
            yield AlgorithmCost(base[0] + hops[0] * alpha[0], hops[1] * alpha[1], ring * inside, ring * between)
        if "tree" in among:
            yield AlgorithmCost(base[1] + 2 * (local - 1) * tree[0], depth * tree[1], 2 * inside, 2 * between)
        if "hierarchical" in among:
            yield AlgorithmCost(
                base[0] + 2 * (local - 1) * alpha[0],
                2 * (nodes - 1) * alpha[1],
                2 * (local - 1) / local * inside,
                2 * (nodes - 1) / nodes * between,
                serial=True,
            )
        if "switch" in among and p.switch_share and local > 1 and near.reduces:
            up = (1.0, 2 * alpha[1]) if far.reduces else (2.0, depth * tree[1])
            start = p.switch_s * efficiency.latency_factor + 2 * alpha[0]
            yield AlgorithmCost(start, up[1] * (nodes > 1), (local + 1) / local * inside / p.switch_share, up[0] * between)


def phase_load(phase: Phase, devices_per_node: int) -> Load:
    """Load of the links under a ``push``, a ``pull`` (its mirror) or a ``shift``, for any groups of ranks.

    Let S be the bytes of a group's members in a node and k their number. In a push, into the node go S bytes from each of
    the members elsewhere, out of it the other members' bytes from each of k; inside likewise. In a shift a node's network
    carries what its ranks send to a neighbour in another node: of a flat ring, one rank's messages.
    """
    if phase.members == 1:
        return Load(0, 0, 0, 0)
    if phase.members == phase.world_size and phase.pattern != "shift":
        return _flat_load(phase, devices_per_node)
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


def _flat_load(phase: Phase, local: int) -> Load:
    """The same where all ranks are one group and every node has ``local`` of them."""
    n = phase.world_size
    sizes = phase.by_rank().reshape(-1, local)
    held = sizes.sum(axis=1)
    network = max(int(held.max()) * (n - local), (int(held.sum()) - int(held.min())) * local)
    kept = int((held[:, None] - sizes).max())
    return Load(max(int(sizes.max()) * (local - 1), kept), network, local - 1, n - local)
