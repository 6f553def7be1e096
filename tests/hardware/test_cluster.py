"""Clusters: levels of links, by name and from texts; what cannot be is refused."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import predict
from paceline.errors import UserError
from paceline.hardware import Cluster, Level, device, link, network

NVLINK, INFINIBAND = link("NVLink 5"), network("InfiniBand NDR")
B200 = device("B200")


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "name"),
    [
        ("2x8 A100", 2, 8, "A100 SXM 80GB"),
        ("16x4xT4", 16, 4, "T4"),
        ("8 A100", 1, 8, "A100 SXM 80GB"),
        ("8xA100", 1, 8, "A100 SXM 80GB"),
        ("Dell H100 SXM5 x 4", 1, 4, "H100 SXM"),
        ("p5.48xlarge x 2", 2, 8, "H100 SXM"),
        ("16 mi300", 2, 8, "MI300X"),
        ("A100", 1, 1, "A100 SXM 80GB"),
        ("2080 Ti", 1, 1, "RTX 2080 Ti"),
        ("4 2080 Ti", 1, 4, "RTX 2080 Ti"),
        ("2 x 8 x A100", 2, 8, "A100 SXM 80GB"),
        ("2x8 Xeon Platinum 8380", 2, 8, "Xeon Platinum 8380"),
        ("2 Xeon Platinum 8380", 1, 2, "Xeon Platinum 8380"),
    ],
)
def test_a_cluster_by_name(text: str, nodes: int, per_node: int, name: str) -> None:
    cluster = Cluster.named(text, network="100Gb/s")
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.device.name) == (nodes, per_node, name)
    assert cluster.network.bandwidth.value == 12.5e9


@given(st.integers(1, 16), st.integers(1, 64))
def test_two_levels_are_nodes_and_a_network(per_node: int, nodes: int) -> None:
    cluster = Cluster(device=B200, levels=(Level("node", per_node, NVLINK), Level("pod", nodes, INFINIBAND)))
    assert cluster == Cluster.of_nodes(B200, per_node, nodes, NVLINK, INFINIBAND)
    assert (cluster.world_size, cluster.intra_link, cluster.network) == (per_node * nodes, NVLINK, INFINIBAND)
    assert cluster.changed(num_nodes=3).world_size == 3 * per_node


def test_a_rack_of_one_link_is_one_domain() -> None:
    """An NVL72: 18 trays of 4 on NVLink, eight racks on InfiniBand."""
    levels = Level("node", 4, NVLINK), Level("rack", 18, NVLINK), Level("pod", 8, INFINIBAND)
    cluster = Cluster(device=B200, levels=levels)
    assert (cluster.devices_per_node, cluster.num_nodes, cluster.world_size) == (72, 8, 576)
    assert (cluster.intra_link, cluster.network) == (NVLINK, INFINIBAND)


@given(st.permutations([1, 4, 8]))
def test_a_level_of_one_member_is_no_kind_of_link(sizes: list[int]) -> None:
    links = (NVLINK, INFINIBAND, network("10Gb/s"))
    levels = tuple(Level(name, size, by) for name, size, by in zip(("node", "rack", "pod"), sizes, links, strict=True))
    cluster = Cluster(device=B200, levels=levels)
    near, far = (level for level in levels if level.size > 1)
    assert (cluster.devices_per_node, cluster.num_nodes) == (near.size, far.size)
    assert (cluster.intra_link, cluster.network) == (near.link, far.link)


def test_three_kinds_of_links_are_refused() -> None:
    levels = Level("node", 4, NVLINK), Level("rack", 18, INFINIBAND), Level("site", 2, network("10Gb/s"))
    """Such a cluster can be said; a prediction knows two kinds of links."""
    cluster = Cluster(device=B200, levels=levels)
    assert cluster.world_size == 144
    with pytest.raises(UserError, match="3 kinds of links"):
        predict("resnet-50", cluster, global_batch_size=144)
    with pytest.raises(UserError, match="a change of a cluster of 3 levels"):
        cluster.changed(num_nodes=2)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((), "has no level"),
        ((Level("nod", 4, NVLINK),), "unknown level of a cluster 'nod'.*node"),
        ((Level("node", 0, NVLINK),), "0 members of a node"),
        ((Level("pod", 2, INFINIBAND), Level("node", 4, NVLINK)), "innermost first"),
        ((Level("node", 1000, NVLINK),), "joins at most 576"),
    ],
)
def test_levels_that_cannot_be(levels: tuple[Level, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cluster(device=B200, levels=levels)


@pytest.mark.parametrize(
    ("text", "message"), [("", "without a name"), ("2x8", "unknown device"), ("8 A10000", "unknown device"), (8, "cluster 8")]
)
def test_names_that_are_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Cluster.named(text)


def test_equal_clusters_are_one_key() -> None:
    named, made = Cluster.named("2x8 A100", "100Gb/s"), Cluster.from_json(asdict(Cluster.named("2x8 A100", "100Gb/s")))
    assert named == made and named is not made and hash(named) == hash(made)
    others = {Cluster.named(text, "100Gb/s") for text in ("2x8 A100", "8 A100", "2x8 H100", "4x8 A100")}
    assert len(others) == 4 and made in others


def test_a_long_number_is_one_short_line() -> None:
    with pytest.raises(UserError, match="cluster '99999") as refused:
        Cluster.named("9" * 5000 + "x8 A100")
    assert len(str(refused.value)) < 200
