"""Sizes of a cluster grow to the last node and fill nodes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline.hardware import cluster
from paceline.planning.search.space import smaller, worlds


def test_worlds() -> None:
    assert worlds(8, 3) == ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 3))
    assert worlds(1, 1) == ((1, 1),)
    nodes = [n for _, n in worlds(8, 100)]
    assert nodes[-1] == 100 and 64 in nodes and len(nodes) < 25


@given(st.integers(1, 16), st.integers(1, 300))
def test_worlds_grow_to_the_last_node_and_fill_nodes(devices_per_node: int, max_nodes: int) -> None:
    sizes = worlds(devices_per_node, max_nodes)
    devices = [local * nodes for local, nodes in sizes]
    assert devices == sorted(set(devices)) and devices[0] == 1 and devices[-1] == devices_per_node * max_nodes
    assert all(nodes == 1 or local == devices_per_node for local, nodes in sizes)
    assert all(after <= 2 * before for before, after in pairwise(devices))


def test_every_smaller_cluster_up_to_the_largest() -> None:
    sizes = smaller(cluster("A100", 4, 3, "100Gb/s"))
    assert [(c.devices_per_node, c.num_nodes) for c in sizes] == [(1, 1), (2, 1), (4, 1), (4, 2), (4, 3)]
    assert {c.network.name for c in sizes if c.num_nodes > 1} == {"Ethernet 100 Gb/s"}
