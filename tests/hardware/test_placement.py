"""Nodes that hold different numbers of devices, and leaf switches with fewer links up than down."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import Cluster, Level, device, link, network
from paceline.hardware.placement import equal, nodes_text, parse_sizes, sizes_text

A100, NVLINK, INFINIBAND = device("A100"), link("NVLink 3"), network("InfiniBand HDR")
SIZES = st.lists(st.integers(1, 8), min_size=2, max_size=6)


def of(sizes: object, nodes: int, **leaves: float) -> Cluster:
    return Cluster.of_nodes(A100, sizes, nodes, NVLINK, INFINIBAND, **leaves)  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "sizes"), [("1+7 A100", (1, 7)), ("2+4+4 T4", (2, 4, 4)), ("2 + 4 x A100", (2, 4))])
def test_an_uneven_cluster_by_name(text: str, sizes: tuple[int, ...]) -> None:
    cluster = Cluster.named(text, "100Gb/s")
    assert (cluster.node_sizes, cluster.world_size, cluster.num_nodes) == (sizes, sum(sizes), len(sizes))
    assert cluster.devices_per_node == max(sizes) and not cluster.even
    assert cluster.node_text == "+".join(map(str, sizes)) and cluster.node_text in repr(cluster)


def test_it_needs_a_network() -> None:
    with pytest.raises(UserError, match="no network"):
        Cluster.named("1+7 A100")


@given(SIZES)
def test_a_text_is_read_back(sizes: list[int]) -> None:
    assert parse_sizes(sizes_text(tuple(sizes))) == tuple(sizes)
    assert parse_sizes(str(sizes[0])) == sizes[0]


@given(SIZES)
def test_json_is_read_back(sizes: list[int]) -> None:
    cluster = of(tuple(sizes), len(sizes))
    assert Cluster.from_json(json.loads(json.dumps(asdict(cluster)))) == cluster


@given(st.integers(1, 8), st.integers(2, 6))
def test_equal_nodes_are_an_even_cluster(size: int, nodes: int) -> None:
    assert of((size,) * nodes, nodes) == of(size, nodes) and of((size,) * nodes, nodes).even
    assert equal((size,) * nodes) == size
    assert of(size, nodes).node_sizes == (size,) * nodes


@pytest.mark.parametrize("text", ["", "+", "1+", "1+x", "1++2", "-1", "1.5"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match=r"write 8, or 1\+7"):
        parse_sizes(text)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(UserError, match="3 sizes of 2 nodes"):
        of((1, 2, 3), 2)
    with pytest.raises(UserError, match="0 members of a node"):
        of((0, 3), 2)
    with pytest.raises(UserError, match="without nodes"):
        of((), 2)


def test_another_number_of_uneven_nodes_needs_their_sizes() -> None:
    cluster = of((1, 7), 2)
    assert cluster.changed(network=network("10Gb/s")).node_sizes == (1, 7)
    with pytest.raises(UserError, match=r"1\+7 devices"):
        cluster.changed(num_nodes=3)
    assert cluster.changed(num_nodes=3, devices_per_node=4) == of(4, 3)
    assert cluster.changed(num_nodes=3, devices_per_node=(1, 2, 3)).node_sizes == (1, 2, 3)


def test_a_leaf_is_a_rack_of_the_same_link() -> None:
    cluster = of(8, 8, leaf_nodes=4, oversubscription=2.0)
    assert (cluster.num_nodes, cluster.leaf_nodes, cluster.oversubscription, cluster.world_size) == (8, 4, 2.0, 64)
    assert [(level.name, level.size) for level in cluster.levels] == [("node", 8), ("rack", 4), ("pod", 2)]
    assert Cluster.from_json(json.loads(json.dumps(asdict(cluster)))) == cluster
    assert cluster.changed(num_nodes=16).leaf_nodes == 4 and cluster.changed(num_nodes=4).leaf_nodes == 0


def test_a_level_of_nodes_may_block() -> None:
    levels = Level("node", 8, NVLINK), Level("pod", 4, INFINIBAND, 2.0)
    assert (Cluster(device=A100, levels=levels).leaf_nodes, Cluster(device=A100, levels=levels).oversubscription) == (1, 2.0)


def test_no_oversubscription_is_no_leaf() -> None:
    assert of(8, 8, leaf_nodes=4) == of(8, 8) == of(8, 8, leaf_nodes=8, oversubscription=4.0)


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"leaf_nodes": 3, "oversubscription": 2.0}, "no whole leaf switches of 3"),
        ({"oversubscription": 2.0}, "of no switch"),
        ({"leaf_nodes": 4, "oversubscription": 0.5}, "give 1 or more"),
        ({"leaf_nodes": -1, "oversubscription": 2.0}, "leaf_nodes is -1"),
    ],
)
def test_leaves_that_cannot_be(leaves: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        of(8, 8, **leaves)


def test_two_blocking_levels_are_refused() -> None:
    levels = Level("node", 8, NVLINK), Level("rack", 4, INFINIBAND, 2.0), Level("pod", 4, INFINIBAND, 2.0)
    with pytest.raises(UserError, match="one is predicted"):
        _ = Cluster(device=A100, levels=levels).leaf_nodes
    inside = Level("node", 8, NVLINK, 2.0), Level("pod", 4, INFINIBAND)
    with pytest.raises(UserError, match="inside a node"):
        _ = Cluster(device=A100, levels=inside).leaf_nodes


def test_nodes_in_words() -> None:
    assert [nodes_text(8, 1), nodes_text(8, 2), nodes_text((1, 7), 2), nodes_text("1+7", 2)] == ["8", "2 x 8", "1+7", "1+7"]
