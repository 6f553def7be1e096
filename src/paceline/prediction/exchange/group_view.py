"""A cluster as seen by one of many equal groups of its devices, when all of them exchange at once.

Ranks are node-major. A group has ``members`` ranks, ``stride`` apart. Its network is an equal share of a node's among the
groups in that node. The link inside a node belongs to each device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd

import numpy as np

from paceline.array_types import Ints
from paceline.errors import UserError
from paceline.hardware.cluster import Cluster
from paceline.hardware.device import Fact, Link
from paceline.hardware.levels import Level
from paceline.hardware.placement import Places, placement

ACROSS = "data x context"
"""Name of the replicas of a stage, which no size of the mesh keeps inside unlike nodes."""


def group_view(cluster: Cluster, members: int, stride: int, whose: str = "") -> Cluster:
    """Return the members of one group as a separate cluster of ``members`` devices.

    Args:
        whose: sizes of the mesh that make the group, such as ``tensor``, for the error.

    Raises:
        UserError: nodes' boundaries cut the groups unevenly.
    """
    local, span = cluster.devices_per_node, members * stride
    if not cluster.even:
        return _uneven_view(cluster, members, stride, whose)
    whole = members == 1 or cluster.num_nodes == 1 or span == cluster.world_size
    if not whole and local % span and (span % local or (local % stride and stride % local)):
        raise UserError(
            f"{_groups(whose, members, stride)} do not lie evenly in nodes of {local}",
            "give sizes of the mesh that divide the devices of a node, or are multiples of them",
        )
    return _view(cluster, members, stride)


def _groups(whose: str, members: int, stride: int) -> str:
    return f"{f'{whose}: ' if whose else ''}groups of {members} devices, {stride} apart,"


def _uneven_view(cluster: Cluster, members: int, stride: int, whose: str) -> Cluster:
    """Return ``group_view`` for nodes with different numbers of devices: of all ranks, or of groups within nodes."""
    if members == cluster.world_size:
        return cluster
    if members > 1 and any(size % (members * stride) for size in cluster.unlike_sizes):
        fits = "give sizes of the mesh that divide the devices of every node, or nodes of equally many devices"
        replicas = f"give nodes of equally many devices: {whose} lies across nodes"
        raise UserError(
            f"{_groups(whose, members, stride)} do not lie evenly in nodes of {cluster.node_text}",
            replicas if whose == ACROSS else fits,
        )
    inside = _shared_by(cluster.intra_link, members, max(cluster.node_sizes))
    return replace(cluster, levels=(Level("node", members, inside), Level("pod", 1, inside)))


@lru_cache(maxsize=4096)
def _view(cluster: Cluster, members: int, stride: int) -> Cluster:
    local = cluster.devices_per_node
    beside = max(1, min(members, local // stride))  # members of a group that share a node
    while members % beside:
        beside -= 1
    nodes = members // beside
    inside = _shared_by(cluster.intra_link, beside, local)
    if nodes == 1:
        return replace(cluster, levels=(Level("node", members, inside), Level("pod", 1, inside)))
    groups = local // beside  # that send through one node's network at once
    return Cluster.of_nodes(
        cluster.device,
        beside,
        nodes,
        inside,
        divided(cluster.network, groups),
        leaf_nodes=_leaf_nodes(cluster, nodes, max(1, stride // local)),
        oversubscription=cluster.oversubscription,
    )


def _leaf_nodes(cluster: Cluster, nodes: int, apart: int) -> int:
    """Return the nodes of one leaf switch in a group of ``nodes`` nodes, ``apart`` nodes apart.

    Traffic that leaves the leaf shares its uplinks with the groups of the nodes in between. Leaves that cut groups unevenly
    count as smaller ones.
    """
    if not cluster.leaf_nodes:
        return 0
    if cluster.leaf_nodes % (nodes * apart) == 0:
        return nodes
    return gcd(nodes, max(1, cluster.leaf_nodes // apart))


def nodes_of_ranks(places: Places, world_size: int) -> Ints:
    """Return the node of each rank, (world_size,)."""
    sizes = placement(places).sizes
    if isinstance(sizes, int):
        return np.arange(world_size, dtype=np.int64) // sizes
    return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)


def _shared_by(link: Link, members: int, devices: int) -> Link:
    """Return the link inside a node with the part of a shared bandwidth that ``members`` of its ``devices`` get."""
    if link.shared is None or members == devices:
        return link
    return replace(link, shared=replace(link.shared, value=link.shared.value * members / devices))


def divided(link: Link, users: float) -> Link:
    """Return the link with its bandwidth shared by ``users`` at once."""
    if users == 1:
        return link
    rate = link.bandwidth
    return replace(link, bandwidth=Fact(rate.value / users, rate.source, rate.date))


def pairs_between(cluster: Cluster, devices: int, first: int, second: int) -> tuple[Link, float, bool]:
    """Describe the link between two blocks of ``devices`` ranks, partner by partner.

    Returns the link, the most pairs that share it, and whether it is the network between nodes. Pairs that share a leaf
    switch's uplinks count by the missing bandwidth.

    Args:
        first, second: indices of the blocks, counted from the first rank; the stages of a pipeline.
    """
    places = cluster.places
    if isinstance(places, int):
        ranks = np.arange(devices)
        nodes, others = (first * devices + ranks) // places, (second * devices + ranks) // places
    else:
        of_rank = nodes_of_ranks(places, cluster.world_size)
        nodes, others = (of_rank[block * devices : (block + 1) * devices] for block in (first, second))
    crossing = nodes[nodes != others]
    if not len(crossing):
        return cluster.intra_link, 1, False
    users: float = int(np.bincount(crossing).max())
    if leaf := cluster.leaf_nodes:
        leaving = nodes[nodes // leaf != others // leaf] // leaf
        if len(leaving):
            users = max(users, int(np.bincount(leaving).max()) * cluster.oversubscription / leaf)
    return cluster.network, users, True
