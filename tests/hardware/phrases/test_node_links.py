"""Ports of a node, and the transport of an Ethernet, where the words leave them open."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_row import each_row
from facts import facts
from paceline.errors import UserError
from paceline.hardware import Cluster, device, instance, network
from paceline.hardware.phrases.node_links import counted_text, node_ports, stated_link


@each_row("name", list(node_ports()))
def test_ports_are_those_of_the_system_that_is_sold(name: str) -> None:
    ports = node_ports()[name]
    assert device(name).name == name and network(ports.port).name == ports.port
    assert "<http" in ports.source
    sold = instance(ports.system)
    if sold is not None and sold.device == name:
        assert (sold.devices, network(sold.network).bandwidth.value) == (
            ports.size,
            pytest.approx(ports.ports * network(ports.port).bandwidth.value),
        )


def test_every_source_is_used() -> None:
    data = tomllib.loads(files("paceline.hardware").joinpath("phrases/node_links.toml").read_text(encoding="utf-8"))
    assert {row["source"] for row in data["node"]} == set(data["sources"])


@each_row(
    ("on", "text", "chosen"),
    [
        ("2x8 H100", "InfiniBand NDR", facts("8x InfiniBand NDR", "like DGX H100", "--network '1x InfiniBand NDR'")),
        ("2x4 H100", "NDR", facts("4x InfiniBand NDR", "in proportion to DGX H100")),
        ("2x4 RTX 4090", "NDR", facts("1x InfiniBand NDR", "--network '4x InfiniBand NDR'")),
        ("2x8 A100", "100GbE", facts("over TCP", "outside clouds", "--network '100Gb/s RoCE'")),
        ("2x ND96asr_v4", "100GbE", facts("over RoCE", "clouds", "--network '100Gb/s TCP'")),
        ("2x8 A100", "2x 100GbE", facts("over TCP", "--network '2x 100Gb/s RoCE'")),
    ],
)
def test_what_was_chosen_is_said_with_the_way_to_state_otherwise(on: str, text: str, chosen: str) -> None:
    cluster = Cluster.named(on, text)
    assert len(cluster.notes) == 1 and re.search(chosen, cluster.notes[0])
    other = re.search("--network '(.*)'", cluster.notes[0])
    assert other is not None and not Cluster.named(on, other[1]).notes
    assert Cluster.named(on, other[1]).network != cluster.network
    assert len(cluster.notes[0]) <= 110


@each_row("text", ["8x InfiniBand NDR", "400Gb/s RoCE", "EFA", "100Gb/s", "1x NDR", "100Gb/s InfiniBand"])
def test_what_is_stated_is_not_commented(text: str) -> None:
    assert Cluster.named("2x8 H100", text).notes == ()


def test_one_node_has_no_network_to_comment() -> None:
    assert Cluster.named("8 H100", "NDR").notes == ()


@given(
    st.sampled_from(["H100", "A100", "RTX 4090", "V100"]),
    st.sampled_from(["NDR", "1x NDR", "8x HDR", "HDR100", "100Gb/s", "100GbE", "Slingshot", "400Gb/s RoCE", "IB EDR"]),
    st.integers(1, 8),
)
def test_the_name_of_a_network_is_read_as_the_same_network(name: str, text: str, devices: int) -> None:
    found = Cluster.named(f"2x{devices} {name}", text).network
    assert Cluster.named(f"2x{devices} {name}", counted_text(found)).network == found


def test_a_link_inside_a_node_joins_no_nodes() -> None:
    with pytest.raises(UserError, match=facts("NVLink", "inside a node", "InfiniBand NDR")):
        stated_link("NVLink", device("H100"), 8)
