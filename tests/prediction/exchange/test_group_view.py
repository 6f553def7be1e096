"""A group's view of a cluster: its members by node, and its share of a network that all groups use at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Cluster
from paceline.prediction.exchange.group_view import group_view

powers = st.integers(0, 4).map(lambda n: 2**n)


def cluster(nodes: int, local: int) -> Cluster:
    return Cluster.named(f"{nodes}x{local} A100", network="100Gb/s")


@given(powers, powers, powers, powers)
def test_members_of_a_node_are_those_of_the_ranks(nodes: int, local: int, members: int, stride: int) -> None:
    whole = cluster(nodes, min(local, 8))
    if whole.world_size % (members * stride):
        return
    ranks = np.arange(members) * stride
    by_node = np.bincount(ranks // whole.devices_per_node)
    view = group_view(whole, members, stride)
    assert view.world_size == members
    assert view.devices_per_node == by_node.max() and view.num_nodes == np.count_nonzero(by_node)


@pytest.mark.parametrize(("members", "stride", "users"), [(16, 1, 1), (4, 4, 4), (2, 8, 8), (8, 2, 2)])
def test_groups_of_a_node_share_its_network(members: int, stride: int, users: int) -> None:
    whole = cluster(2, 8)
    view = group_view(whole, members, stride)
    assert view.network.bandwidth.value == pytest.approx(whole.network.bandwidth.value / users)
    assert view.intra_link == whole.intra_link


def test_the_whole_cluster_is_its_own_view() -> None:
    whole = cluster(4, 8)
    view = group_view(whole, 32, 1)
    assert [(level.size, level.link) for level in view.levels] == [(level.size, level.link) for level in whole.levels]


def test_a_group_inside_a_node_has_no_network() -> None:
    view = group_view(cluster(4, 8), 8, 1)
    assert (view.num_nodes, view.network) == (1, view.intra_link)
