"""Seconds of one collective on a cluster, by the alpha-beta model: a message of n bytes takes ``alpha + n / bandwidth``.

There are two levels: a link inside each node, per device, and the node's network, shared by its devices. Pairs with a bridge in
one machine are such nodes too, and the path through the host is their network, which they share. Ranks are node-major.
Nodes may hold different numbers of devices, and the busiest one sets the time. Nothing else loads the links, all devices are
equally fast, and switches do not block. Only oversubscribed leaf switches do: traffic that leaves a leaf shares its uplinks.
Collectives run with the algorithm (``ALGORITHMS``) and the protocol (``protocols.py``) fastest for their size.

Sources: Hockney 1994, The communication challenge for MPP, Parallel Computing 20(3) (alpha-beta); Thakur, Rabenseifner,
Gropp 2005, Optimization of collective communication operations in MPICH, IJHPCA 19(1) (ring, pairwise exchange); Li et al.
2018, INCEPTIONN, MICRO, Algorithm 1 (the ring of encoded blocks: 2 (N-1) alpha + 2 (N-1)/N n beta);
Sanders, Speck, Traeff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing
35(12), which NCCL uses for small messages; NVIDIA, NCCL src/graph/tuning.cc (the steps of each level); Goyal et al. 2017,
Accurate, Large Minibatch SGD, section 4 (hierarchical: reduce in a node, all-reduce between, gather in a node).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.calibration.accelerators import protocols
from paceline.calibration.constants import Efficiency
from paceline.hardware.cluster import Cluster
from paceline.hardware.placement import Places, placement
from paceline.prediction.exchange.group_view import group_view, nodes_of_ranks
from paceline.strategy.codec_place import PLAIN, Fabric
from paceline.strategy.compression.card_frames import HEADERS, PAYLOAD
from paceline.strategy.phase import Phase

Algorithm = Literal["ring", "tree", "switch", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "switch")
"""Algorithms of an engine. Some frameworks add ``hierarchical``."""
MESSAGE_S = 1e-3
"""Most seconds of a latency that each message pays. The rest is distance, during which other chunks send."""
IN_FLIGHT = 3
"""Chunks under way at once on CPUs (``DEPTH`` of ``training/exchanges/pipeline.py``). GPUs send all of them at once."""
COLUMNS = 10
NOTHING = (4.0, *[0.0] * (COLUMNS - 1))
"""Row of a phase in which no rank sends anything."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load of the busiest link of each level in one phase.

    Attributes:
        intra, network: bytes in the busier direction, inside a node and between nodes.
        near, far: messages that one rank sends in one round, inside its node and to other nodes.
    """

    intra: int
    network: int
    near: int
    far: int


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of many phases on nodes of one size. They do not depend on the speed of links. Arrays are (phases,).

    Attributes:
        pattern: 0 all-reduce, 1 all-gather or reduce-scatter, 2 push or pull, 3 shift, 4 nothing to send, 5 a sum in the
            switch.
        size: bytes of the buffer of an engine's collective.
        intra, network: bytes over the busiest link of each level, for all other patterns.
        near, far: messages per round for a push or pull; for a shift the share of the ring's links in each level.
        rounds: number of rounds.
        plain: bytes between nodes as the hosts send them, if cards compress them; else 0.
        members, stride: for an engine's collective in groups, their ranks and the distance of these; 0: all ranks together.
    """

    pattern: Ints
    size: Array
    intra: Array
    network: Array
    near: Array
    far: Array
    rounds: Array
    plain: Array
    members: Ints
    stride: Ints

    @classmethod
    def of(cls, rows: Array) -> Loads:
        """Build loads from rows of ``load_rows``, (phases, COLUMNS)."""
        groups = rows[:, -2:].astype(np.int64)
        return cls(rows[:, 0].astype(np.int64), *rows[:, 1:-2].T, *groups.T)


@dataclass(frozen=True, slots=True)
class AlgorithmCost:
    """Cost of one algorithm with one protocol: each level takes ``fixed + size * per_byte`` seconds.

    The bytes of both levels move at the same time, or one level after the other if ``serial``.
    """

    intra_s: float
    network_s: float
    intra_per_byte: float
    network_per_byte: float
    serial: bool = False


def loads(phases: Sequence[Phase], places: Places) -> Loads:
    """Return the loads of phases. They are slow to compute, so callers cache them. ``places``: ``Cluster.places``."""
    return Loads.of(load_rows(phases, places))


def load_rows(phases: Sequence[Phase | None], places: Places) -> Array:
    """Return a row of ``Loads`` for each phase, (phases, COLUMNS). A None sends nothing."""
    rows = [NOTHING if phase is None else _row(phase, places) for phase in phases]
    return np.array(rows, dtype=np.float64).reshape(-1, COLUMNS)


def _row(phase: Phase, places: Places) -> tuple[float, ...]:
    size = max(phase.sizes)
    if phase.members == 1:
        return NOTHING
    if phase.pattern in ("allreduce", "gather", "scatter"):
        groups = (0, 0) if phase.members == phase.world_size else (phase.members, phase.stride)
        return (0 if phase.ring else 1, size, 0, 0, 0, 0, 0, 0, *groups)
    if phase.pattern == "switch":
        return (5, 0, 0, _switch_load(phase, places), 0, 1, phase.rounds, 0, 0, 0)
    load = phase_load(phase, places)
    network = max(float(load.network), spine_load(phase, places))
    plain = 0
    if phase.plain:  # a card is at the edge of a node; inside the node messages are as the hosts send them
        own = phase_load(replace(phase, sizes=phase.plain), places)
        load, plain = replace(load, intra=own.intra), own.network
    if phase.pattern == "shift":
        node = nodes_of_ranks(places, phase.world_size)[phase.groups()]
        far = float((node != np.roll(node, -1, axis=1)).mean(axis=1).max())
        return (3, 0, load.intra, network, 1 - far, far, phase.rounds, plain, 0, 0)
    return (2, 0, load.intra, network, load.near, load.far, phase.rounds, plain, 0, 0)


def phase_seconds(table: Loads, cluster: Cluster, efficiency: Efficiency, fabric: Fabric = PLAIN) -> tuple[Array, Bools]:
    """Return seconds of every phase, (phases,), and whether the network between nodes sets them, (phases,).

    An engine runs its own collective with the fastest algorithm. In a push or pull both levels work at the same time, and the
    slower one sets the time. A rank has several messages in flight, so latencies add from round to round only. With one
    message in flight this is the pairwise exchange of Thakur et al. 2005. Chunks that are under way at once wait for a long
    distance together (``MESSAGE_S``). In a shift a message passes from member to member. Its latencies add over ``rounds``
    links, divided between the levels as the links of the ring are. The slower level sets the bandwidth. A card passes the
    hosts' bytes at the rate of its engine, in both directions at once, and the line carries the engine's output. The card adds
    its cycles to each message. A switch receives and sends at once.
    """
    near, far = cluster.intra_link, cluster.network
    alpha = [efficiency.latency(link) for link in (near, far)]
    beta = [1 / efficiency.bandwidth(near, cluster.devices_per_node), 1 / efficiency.bandwidth(far, cluster.num_nodes)]
    intra, network = table.intra * beta[0], table.network * beta[1]
    behind_card = table.plain > 0
    alpha_far = np.full(len(table.pattern), alpha[1])
    if fabric.nic is not None and behind_card.any():
        card = fabric.nic
        passed = table.plain / card.rate(PAYLOAD, HEADERS)
        network = np.maximum(network, np.where(behind_card, np.maximum(table.network / card.line_rate, passed), 0.0))
        alpha_far = np.where(behind_card, alpha[1] + card.latency_s, alpha[1])
    direct = table.pattern == 2
    if direct.any():
        at_once = efficiency.concurrent_messages
        intra = np.where(direct, intra + table.rounds * np.ceil(table.near / at_once) * alpha[0], intra)
        distance = max(0.0, alpha[1] - MESSAGE_S)
        under_way = np.ceil(table.rounds / IN_FLIGHT) if cluster.device.kind == "cpu" else np.minimum(table.rounds, 1)
        waits = table.rounds * (alpha_far - distance) + under_way * distance
        network = np.where(direct, network + waits * np.ceil(table.far / at_once), network)
    switched = table.pattern == 5
    if fabric.aggregation is not None and switched.any():
        switch = fabric.aggregation
        adding = np.maximum(network * switch.on_line(PAYLOAD, HEADERS), table.network / switch.port_rate)
        turns = np.minimum(table.rounds, 1)  # chunks stream: the next are sent before a sum returns
        network = np.where(switched, adding + turns * 2 * alpha[1], network)
    seconds, by_network = np.maximum(intra, network), network >= intra
    shift = table.pattern == 3
    if shift.any():
        seconds = seconds + shift * table.rounds * (table.far * alpha_far + table.near * alpha[0])
        by_network &= ~shift | (table.network > 0)
    for code, halves in ((0, False), (1, True)):
        of_kind = table.pattern == code
        groups = sorted(set(zip(table.members[of_kind].tolist(), table.stride[of_kind].tolist(), strict=True)))
        for members, stride in groups:
            own = of_kind & (table.members == members) & (table.stride == stride)
            view = group_view(cluster, members, stride) if members else cluster
            times, level = collective_seconds(table.size[own], view, efficiency, halves=halves)
            seconds[own], by_network[own] = times, level
    by_network &= table.pattern != 4
    return seconds, by_network


def collective_seconds(
    sizes: Array,
    cluster: Cluster,
    efficiency: Efficiency,
    *,
    halves: bool = False,
    among: Sequence[Algorithm] = ALGORITHMS,
    in_place: bool = True,
) -> tuple[Array, Bools]:
    """Return seconds of an all-reduce of ``sizes`` bytes among all devices, and whether the network between nodes sets them.

    Args:
        sizes: bytes, (collectives,), as are both results.
        halves: an all-gather or a reduce-scatter instead, which is half of a ring (Thakur et al. 2005, section 4).
        among: the algorithms that the engine may choose from. A CPU has only the ring (gloo).
        in_place: in an all-gather or a reduce-scatter the part of a device lies in the buffer of all (Megatron-Core's and
            FSDP's buffers), so that nothing is copied.
    """
    if cluster.world_size == 1:
        return np.zeros_like(sizes), np.zeros(len(sizes), dtype=np.bool_)
    cpu = cluster.device.kind == "cpu"
    ways = list(
        _algorithm_costs(
            cluster,
            efficiency,
            ("ring",) if halves or (cpu and among == ALGORITHMS) else among,
            1 if halves else 2,
            copies=not (halves and in_place),
        )
    )
    table = np.array([(w.intra_s, w.network_s, w.intra_per_byte, w.network_per_byte, w.serial) for w in ways])
    volume = np.asarray(sizes, dtype=np.float64)[:, None]
    intra, network = volume * table[:, 2], volume * table[:, 3]
    total = table[:, 0] + table[:, 1] + np.where(table[:, 4] > 0, intra + network, np.maximum(intra, network))
    best, rows = total.argmin(axis=1), np.arange(len(volume))
    level = (network + table[:, 1] > intra + table[:, 0])[rows, best]
    return total[rows, best], level


def alltoall_seconds(
    sizes: Array,
    cluster: Cluster,
    efficiency: Efficiency,
    *,
    copies: float = 1.0,
    once_per_node: bool = False,
    within: float = 1.0,
) -> tuple[Array, Bools]:
    """Return seconds of an all-to-all of ``sizes`` bytes on each device, and whether the network between nodes sets them.

    Each device keeps 1/N of its bytes and sends the rest, an equal part to each other device. A node of R devices sends
    ``R (N-R)/N`` of them; inside the node each sends ``(R-1)/N``. Both levels work at once, and a rank has several messages in
    flight (``phase_seconds``).

    Args:
        copies: number of members that each number goes to; several may be on one device.
        once_per_node: numbers cross the network once for each target node, and the link inside it once for each target
            device. Copies to M nodes at random reach ``M (1 - (1 - 1/M)^copies)`` of them, and so do those to N devices. What
            a device keeps takes the same path (DeepSeek-AI, DeepEP; arXiv:2412.19437, section 3.2.2).
        within: share of the nodes that the copies of one number are chosen from.
    """
    n, nodes, local = cluster.world_size, cluster.num_nodes, cluster.devices_per_node
    volume = np.asarray(sizes, dtype=np.float64)
    if n == 1:
        return np.zeros_like(volume), np.zeros(len(volume), dtype=np.bool_)
    near, far = cluster.intra_link, cluster.network
    inside, crossing = (local - 1) / n, 1.0
    leaving: float = max(size * (n - size) for size in cluster.unlike_sizes)
    if cluster.leaf_sizes:
        above = max(size * (n - size) for size in set(cluster.leaf_sizes))
        leaving = max(leaving, above * cluster.oversubscription / cluster.leaf_nodes)
    peers = local - 1, n - cluster.unlike_sizes[0]
    if once_per_node:
        inside, peers = _reached(n * within, copies) / copies, (local - 1, nodes - 1)
        crossing = _reached(nodes * within, copies) / copies
    alpha = [link.latency.value * efficiency.latency_factor for link in (near, far)]
    beta = 1 / efficiency.bandwidth(near, local), 1 / efficiency.bandwidth(far, nodes)
    waits = [count / efficiency.concurrent_messages * of for count, of in zip(peers, alpha, strict=True)]
    best, by_network = np.full(len(volume), np.inf), np.zeros(len(volume), dtype=np.bool_)
    for p in protocols(efficiency, cluster.device):
        if (local > 1 and near.kind not in p.alltoall_share) or (nodes > 1 and far.kind not in p.share):
            continue
        start = p.ring_s * efficiency.latency_factor
        if local > 1 and near.start:
            start = near.start.value * efficiency.latency_factor * p.alltoall_start
        start += p.alltoall_latencies * p.of_link(p.latency, near) * alpha[0] * (local > 1)
        share, copied = (p.share, 0.0) if once_per_node else (p.alltoall_share, p.copy.get(near.kind, 0.0) / n)
        each = (inside + copied) * beta[0] / share.get(near.kind, 1.0) if local > 1 else 0.0
        leaves = crossing * leaving / n * beta[1] / p.share.get(far.kind, 1.0) if nodes > 1 else 0.0
        inner, outer = volume * each + waits[0], volume * leaves + waits[1]
        seconds = start + np.maximum(inner, outer)
        by_network = np.where(seconds < best, outer > inner, by_network)
        best = np.minimum(best, seconds)
    return best, by_network


def _reached(members: float, copies: float) -> float:
    """Return the expected number of members that get any of several copies at random."""
    return members * float(1 - (1 - 1 / members) ** copies) if members > 1 else 1.0


def _algorithm_costs(
    cluster: Cluster, efficiency: Efficiency, among: Sequence[Algorithm], turns: int = 2, *, copies: bool = True
) -> Iterator[AlgorithmCost]:
    """Yield the cost of every algorithm with every protocol that the cluster's links support. R is that of the fullest node.

    The buffer has n bytes. There are M nodes of R devices, N = M R. Ring: each rank sends 2 (N-1)/N n and copies its own n /
    N, the network of a node carries the traffic of one rank in each direction, and there are 2 (N-1) sequential messages, 2
    (M-1) of them between nodes. Two trees: at most 2 n, 2 (R-1) messages in a node and 2 log2 M between nodes. Switch: to
    reduce, each device sends n and receives its part of the sum, n / R; to broadcast, the reverse. Trees join the nodes, or
    another switch that receives n and sends n. If links inside a node do not reduce, its devices scatter and gather their
    sums as a ring does (CollNet). All of these cross a leaf switch with one node's traffic in each direction, because ranks
    are numbered leaf by leaf. L nodes of a leaf that is oversubscribed x times have L / x nodes' bandwidth to other leaves.
    Hierarchical: 2 (R-1)/R n inside, then 2 (M-1)/M n between nodes over all devices of a node.

    Args:
        turns: passes around the ring: 2 for an all-reduce, 1 for an all-gather or a reduce-scatter.
        copies: whether a device copies its own part.
    """
    n, nodes, local = cluster.world_size, cluster.num_nodes, cluster.devices_per_node
    near, far = cluster.intra_link, cluster.network
    depth = 2 * ceil(log2(nodes))
    ring = turns * (n - 1) / n
    fewest = min((size for size in cluster.unlike_sizes if size > 1), default=1)
    up_links = max(1.0, cluster.oversubscription / cluster.leaf_nodes) if cluster.leaf_nodes else 1.0
    for p in protocols(efficiency, cluster.device):
        if (local > 1 and near.kind not in p.share) or (nodes > 1 and far.kind not in p.share):
            continue
        alpha, tree = (
            [x.latency.value * efficiency.latency_factor * p.of_link(of, x) for x in (near, far)]
            for of in (p.latency, p.tree_latency)
        )
        rates = efficiency.bandwidth(near, local), efficiency.bandwidth(far, nodes)
        beta = [1 / (rate * p.share.get(x.kind, 1.0)) for rate, x in zip(rates, (near, far), strict=True)]
        inside, between = beta[0] * (local > 1), beta[1] * (nodes > 1) * up_links
        measured = near.start.value * p.start if near.start and local > 1 else None
        base = [(first if measured is None else measured) * efficiency.latency_factor for first in (p.ring_s, p.tree_s)]
        if "ring" in among:
            hops = turns * (n - nodes), turns * (nodes - 1)
            own = copies * p.copy.get(near.kind, 0.0) / n
            yield AlgorithmCost(base[0] + hops[0] * alpha[0], hops[1] * alpha[1], (ring + own) * inside, ring * between)
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
            yield AlgorithmCost(start, up[1] * (nodes > 1), (fewest + 1) / fewest * inside / p.switch_share, up[0] * between)
        elif "switch" in among and p.switch_share and nodes > 1 and far.reduces:
            up_s = p.switch_s * efficiency.latency_factor + 2 * (local - 1) * alpha[0]
            yield AlgorithmCost(up_s, 2 * alpha[1], 2 * (local - 1) / local * inside, between)


def phase_load(phase: Phase, places: Places) -> Load:
    """Return the load of the links in a ``push``, a ``pull`` (its mirror) or a ``shift``, for any groups of ranks.

    A group has k members with S bytes in a node. In a push each member outside the node sends S bytes into it, and each of the
    k members sends out the bytes of all members outside. The same holds inside the node. In a shift the network of a node
    carries the data that its ranks send to neighbours in other nodes; in a flat ring this is the traffic of one rank.
    """
    return _load(phase, nodes_of_ranks(places, phase.world_size))


def _switch_load(phase: Phase, places: Places) -> float:
    """Return the bytes of a node's network in its busier direction if a switch adds: those of all its ranks.

    A leaf switch sends one sum to the others, which takes as long on its uplinks as ``x / L`` of it on a node's link.
    """
    where = placement(places)
    node = nodes_of_ranks(places, phase.world_size)
    own = max(float(np.bincount(node, weights=of).max()) for of in (phase.by_rank(), phase.back_by_rank()))
    above = float(phase.back_by_rank().max()) * where.oversubscription / where.leaf_nodes if where.leaf_nodes else 0.0
    return max(own, above)


def spine_load(phase: Phase, places: Places) -> float:
    """Return bytes of a node's network that take as long as the traffic of the busiest leaf switch to other leaves.

    0 if no leaf blocks.
    """
    where = placement(places)
    if not where.leaf_nodes:
        return 0.0
    leaf = nodes_of_ranks(places, phase.world_size) // where.leaf_nodes
    return _load(phase, leaf).network * where.oversubscription / where.leaf_nodes


def _load(phase: Phase, domains: Ints) -> Load:
    """Return ``phase_load`` for the domains of the ranks, (world_size,), nodes or leaves. They rise with the rank."""
    if phase.members == 1:
        return Load(0, 0, 0, 0)
    if phase.members == phase.world_size and phase.pattern != "shift":
        return _flat_load(phase, domains)
    groups = phase.groups()
    sizes, node = phase.by_rank()[groups], domains[groups]
    nodes = int(domains[-1]) + 1
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
    # The fewer members a node has, the more of the group are outside it.
    return Load(intra, int(max(into.max(), out.max())), int(beside.max()), int(phase.members - 1 - beside.min()))


def _flat_load(phase: Phase, domains: Ints) -> Load:
    """Return ``_load`` for one group of all ranks."""
    n, sizes = phase.world_size, phase.by_rank()
    count = np.bincount(domains)
    held = np.add.reduceat(sizes, np.cumsum(count) - count)
    network = int(max((held * (n - count)).max(), ((held.sum() - held) * count).max()))
    beside, kept = count[domains] - 1, held[domains] - sizes
    return Load(int(max((sizes * beside).max(), kept.max())), network, int(count.max()) - 1, n - int(count.min()))
