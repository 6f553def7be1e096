"""How many devices a node is sold with: what a number alone means, and what to write where it means nothing."""

from __future__ import annotations

import re

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, device, devices
from paceline.hardware.node_sizes import node_sizes

LINES = re.compile(r"'([^']*)'")


@pytest.mark.parametrize(
    ("text", "nodes", "per_node"),
    [
        ("64 H100, 400Gb/s RoCE", 8, 8),
        ("64xH100, 100Gb/s", 8, 8),
        ("144 GB200, InfiniBand NDR", 2, 72),
        ("32 A100 40GB, 100Gb/s", 4, 8),
        ("16 RTX 4090, 10Gb/s", 2, 8),
        ("512 TPU v5e, 100Gb/s", 2, 256),
        ("1x64 H100", 1, 64),
        ("1x12 RTX 4090", 1, 12),
        ("16 A100 40GB", 1, 16),
        ("72 GB200", 1, 72),
        ("256 TPU v5e", 1, 256),
        ("64 Xeon", 1, 64),
    ],
)
def test_a_number_alone_is_at_most_one_node_that_is_sold(text: str, nodes: int, per_node: int) -> None:
    cluster = Cluster.named(text)
    assert (cluster.num_nodes, cluster.devices_per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64 H100", facts("64 H100", "8 nodes of 8", "no network")),
        ("512 TPU v5e", facts("512 TPU v5e", "2 nodes of 256", "no network")),
        ("2x8 A100", "2 nodes have no network"),
        ("1+7 A100", "2 nodes have no network"),
        ("2x v5e-16", "2 nodes have no network"),
        ("2x4 RTX 4090", "2 nodes have no network"),
        ("12 H100", facts("12 H100", "no whole nodes", "8")),
        ("12 H100, 10Gb/s", facts("12 H100", "no whole nodes", "8")),
        ("100 GB200", facts("100 GB200", "no whole nodes", "72")),
        ("12 RTX 4090", facts("12 RTX 4090", "no whole nodes", "8")),
    ],
)
def test_what_lacks_a_network_is_answered_with_clusters_to_copy(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        Cluster.named(text)
    assert re.search(said, refused.value.message)
    lines = LINES.findall(refused.value.fix)
    assert len(lines) >= 2
    for line in lines:
        assert Cluster.named(line).device == Cluster.named(lines[0]).device


def test_the_clusters_to_copy_are_slow_and_fast_and_rented() -> None:
    with pytest.raises(UserError) as refused:
        Cluster.named("64 H100")
    lines = LINES.findall(refused.value.fix)
    assert lines == ["8x8 H100, 100Gb/s", "8x8 H100, 400Gb/s RoCE", "8x p5.48xlarge"]
    assert {Cluster.named(line).world_size for line in lines} == {64}


def test_every_device_of_the_catalogue_has_a_node() -> None:
    assert all(node_sizes(entry) for entry in devices() if entry.kind != "cpu")
    assert node_sizes(device("Xeon")) is None
    assert node_sizes(device("A100 40GB")) == (8, 16)
