"""A cluster as one of many equal groups of its devices sees it, when all of them exchange at once.

Ranks are node-major. A group has ``members`` ranks, ``stride`` apart. What it has of a node's network is its share among the
groups that lie in that node; the link inside a node belongs to each device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster, Level
from paceline.hardware.device import Fact, Link


def group_view(cluster: Cluster, members: int, stride: int) -> Cluster:
    """The members of one group as a cluster of their own: of ``members`` devices.

    Raises:
        UserError: nodes' boundaries cut the groups unevenly.
    """
    local, span = cluster.devices_per_node, members * stride
    whole = members == 1 or cluster.num_nodes == 1 or span == cluster.world_size
    if not whole and local % span and (span % local or (local % stride and stride % local)):
        raise UserError(
            f"groups of {members} devices, {stride} apart, do not lie evenly in nodes of {local}",
            "give sizes of the mesh that divide the devices of a node, or are multiples of them",
        )
    return _view(cluster, members, stride)


@lru_cache(maxsize=4096)
def _view(cluster: Cluster, members: int, stride: int) -> Cluster:
    local = cluster.devices_per_node
    beside = max(1, min(members, local // stride))  # members of a group that share a node
    while members % beside:
        beside -= 1
    nodes = members // beside
    if nodes == 1:
        return replace(cluster, levels=(Level("node", members, cluster.intra_link), Level("pod", 1, cluster.intra_link)))
    groups = local // beside  # that send through one node's network at once
    return replace(
        cluster,
        levels=(Level("node", beside, cluster.intra_link), Level("pod", nodes, divided(cluster.network, groups))),
    )


def divided(link: Link, users: int) -> Link:
    """The link with its bandwidth shared by ``users`` at once."""
    if users == 1:
        return link
    rate = link.bandwidth
    return replace(link, bandwidth=Fact(rate.value / users, rate.source, rate.date))


def pairs_between(cluster: Cluster, devices: int, first: int, second: int) -> tuple[Link, int, bool]:
    """Between two blocks of ``devices`` ranks, partner by partner: the link, how many pairs share it at most, and whether
    it is the network between nodes.

    Args:
        first, second: which blocks, counted from the first rank; the stages of a pipeline.
    """
    local = cluster.devices_per_node
    ranks = np.arange(devices)
    nodes, others = (first * devices + ranks) // local, (second * devices + ranks) // local
    crossing = nodes[nodes != others]
    if not len(crossing):
        return cluster.intra_link, 1, False
    return cluster.network, int(np.bincount(crossing).max()), True
