"""Nodes of a cluster: how they are written and numbered, and when they are away."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.hardware.leaf_switches import on_leaves
from paceline.scheduling.fleet import MOST_DEVICES, UNKNOWN_NETWORK, Fleet, NodeGroup, Outage

MIXED = Fleet.named("6x4xT4 + 3x8x2080Ti")


@given(st.integers(1, 99), st.integers(1, 16))
def test_nodes_times_devices(nodes: int, size: int) -> None:
    for text in (f"{nodes}x{size}xT4", f" {nodes} × {size} T4 , 50Gb/s"):
        fleet = Fleet.named(text)
        assert fleet.devices == nodes * size and len(fleet.node_devices) == nodes
    assert fleet.groups[0].network == "50Gb/s"


def test_nodes_are_numbered_group_after_group() -> None:
    assert MIXED.types == ("T4", "RTX 2080 Ti")
    assert MIXED.node_types.tolist() == [0] * 6 + [1] * 3 and MIXED.node_devices.tolist() == [4] * 6 + [8] * 3
    assert MIXED.nodes_of(0) == slice(0, 6) and MIXED.nodes_of(1) == slice(6, 9)


RACKED = Fleet.named("8x4xT4 + 1x8xA100, 25Gb/s, leaf-nodes=2, oversubscription=4:1")


def test_racks_are_those_of_predict() -> None:
    t4, a100 = RACKED.groups
    assert (t4.leaf_nodes, t4.oversubscription, a100.leaf_nodes) == (2, 4.0, 0)
    assert t4.network == "25Gb/s" and t4.racks_text == "racks of 2 nodes, 4:1" and a100.racks_text == ""
    assert [t4.least_racks(nodes) for nodes in (1, 2, 3, 8)] == [1, 1, 2, 4] and a100.least_racks(1) == 1
    whole = t4.part((4,) * 8)
    assert whole == on_leaves(Cluster.named("8x4 T4, 25Gb/s"), 2, 4.0)
    assert t4.part((4, 4)) == Cluster.named("2x4 T4, 25Gb/s")
    apart = t4.part((4, 4), 2)
    assert (apart.leaf_nodes, apart.oversubscription) == (1, 4.0)


def test_a_placement_that_could_lie_in_fewer_racks() -> None:
    assert RACKED.crossed(((0, 4), (1, 4))) == RACKED.crossed(((0, 4),)) == RACKED.crossed(()) == 0
    assert RACKED.crossed(((1, 4), (2, 4))) == 2 and RACKED.crossed(((0, 1), (2, 1), (4, 1))) == 3
    assert RACKED.crossed(((0, 4), (1, 4), (2, 4))) == 0  # three nodes need two racks
    assert RACKED.crossed(((8, 8),)) == MIXED.crossed(((0, 4), (5, 4))) == 0


@pytest.mark.parametrize(
    ("racks", "why"),
    [
        ("leaf-nodes=2", "without oversubscription, which change nothing"),
        ("oversubscription=2:1", "of no switch"),
        ("leaf-nodes=8, oversubscription=2", "all 8 nodes lie below one"),
        ("leaf-nodes=3, oversubscription=2", "no whole leaf switches of 3"),
        ("leaf-nodes=two, oversubscription=2", "write leaf-nodes=4, oversubscription=2:1"),
        ("racks=4", "write leaf-nodes=4, oversubscription=2:1"),
    ],
)
def test_racks_that_change_nothing_or_are_not_full_are_refused(racks: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Fleet.named(f"8x4xT4, 25Gb/s, {racks}")


def test_a_node_is_away_from_the_start_of_an_outage_up_to_its_end() -> None:
    fleet = Fleet.named("2x4xT4", [Outage(1, 10.0, 20.0), Outage(0, 20.0, 30.0, planned=True)])
    assert [fleet.up(t).tolist() for t in (9.9, 10.0, 20.0, 30.0)] == [[1, 1], [1, 0], [0, 1], [1, 1]]
    assert [fleet.next_change(t) for t in (0.0, 10.0, 19.0, 29.0, 30.0)] == [10.0, 20.0, 20.0, 30.0, math.inf]


@pytest.mark.parametrize("text", ["", "T4", "0xT4", "0x4xT4", "4x0xT4", "4xx4xT4", "4x4xT4 + ", "4x4xT4 + 2x4xT4", "-1x4xT4"])
def test_what_is_no_cluster_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        Fleet.named(text)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="T44"):
        Fleet.named("4x4xT44")


def test_no_group_and_too_many_devices_are_refused() -> None:
    with pytest.raises(UserError, match="without nodes"):
        Fleet(())
    with pytest.raises(UserError, match="devices"):
        Fleet((NodeGroup.of("T4", MOST_DEVICES, 2),))


@pytest.mark.parametrize("outage", [Outage(2, 0, 1), Outage(-1, 0, 1), Outage(0, 5, 5), Outage(0, math.nan, 5)])
def test_an_outage_of_no_node_or_no_length_is_refused(outage: Outage) -> None:
    with pytest.raises(UserError, match="an outage of node"):
        Fleet.named("2x4xT4", [outage])


def test_groups_are_clusters() -> None:
    t4, a100 = RACKED.groups
    assert t4.cluster == on_leaves(Cluster.named("8x4 T4, 25Gb/s"), 2, 4.0) and t4.resized(2).cluster.leaf_nodes == 0
    assert a100.cluster.world_size == a100.devices == 8
    alone = NodeGroup.of("T4", 2, 4)
    assert alone.cluster.network == UNKNOWN_NETWORK and alone.joined("25Gb/s") == NodeGroup.of("T4", 2, 4, "25Gb/s")
    for group in (t4, a100, NodeGroup.of("device", 2, 64, price=1.0)):
        assert NodeGroup.of(**group.to_json()) == group
    with pytest.raises(UserError, match="unknown device 'device'"):
        _ = group.hardware
