"""A cluster as one of many equal groups of its devices sees it, when all of them exchange at once.

Ranks are node-major. A group has ``members`` ranks, ``stride`` apart. What it has of a node's network is its share among the
groups that lie in that node; the link inside a node belongs to each device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from paceline.hardware.cluster import Cluster, Level
from paceline.hardware.device import Fact, Link


def group_view(cluster: Cluster, members: int, stride: int) -> Cluster:
    """The members of one group as a cluster of their own: of ``members`` devices.

    Where a node's boundary cuts groups unevenly, the group with the fewest neighbours is taken.
    """
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
