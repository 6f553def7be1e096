"""Which device each node has."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.hardware import Cluster
from paceline.scheduling.live.nodes import UNKNOWN, LiveNodes


def test_the_first_pattern_that_matches_counts_and_types_are_groups() -> None:
    nodes = LiveNodes.named(["gpu-a*=a100", "T4"], "100Gb/s")
    fleet, names = nodes.fleet({"gpu-b1": 4, "gpu-a2": 8, "gpu-a1": 8})
    assert names == ["gpu-a1", "gpu-a2", "gpu-b1"]
    assert [(group.device, group.nodes, group.devices_per_node) for group in fleet.groups] == [
        ("A100 SXM 80GB", 2, 8),
        ("T4", 1, 4),
    ]
    assert fleet.groups[0].part((8, 8)).network.bandwidth.value == 100e9 / 8
    assert LiveNodes.noted(nodes.patterns).kind("gpu-a7").device == "A100 SXM 80GB"


def test_what_nobody_named_is_unknown_and_what_the_executor_knows_comes_last() -> None:
    assert LiveNodes().kind("h0").device == UNKNOWN
    nodes = LiveNodes.named(["h0=H100"], own={"h0": "T4", "h1": "T4"})
    assert [nodes.kind(node).device for node in ("h0", "h1", "h2")] == ["H100 SXM", "T4", UNKNOWN]


def test_a_probe_stands_for_its_machine(tmp_path: Path) -> None:
    probed = Cluster.named("2 T4")
    file = tmp_path / "probe.json"
    file.write_text(json.dumps(asdict(probed)))
    fleet, _ = LiveNodes.named([str(file)], "10Gb/s").fleet({"h0": 2, "h1": 2})
    cluster = fleet.groups[0].part((2, 1))
    assert cluster.device == probed.device == fleet.groups[0].hardware
    assert (cluster.node_sizes, cluster.network.bandwidth.value) == ((2, 1), 10e9 / 8)


def test_nodes_of_a_type_count_as_large_as_the_largest() -> None:
    fleet, _ = LiveNodes.named(["T4"]).fleet({"h0": 2, "h1": 4})
    assert (fleet.groups[0].nodes, fleet.groups[0].devices_per_node) == (2, 4)


def test_a_pattern_that_no_node_matches_is_refused() -> None:
    nodes = LiveNodes.named(["gpu-a*=A100", "T4"])
    nodes.check_patterns(["gpu-a1"])
    with pytest.raises(UserError, match=r"no node matches 'gpu-a\*' of a `device`; the nodes are h0, h1"):
        nodes.check_patterns(["h1", "h0"])


@pytest.mark.parametrize(
    ("text", "network", "why"),
    [
        ("=T4", "", "write A100"),
        ("h0=", "", "write A100"),
        ("T5", "", "T5"),
        ("no.json", "", "no.json"),
        ("T4", "fast", "fast"),
    ],
)
def test_what_is_no_device_is_refused(text: str, network: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        LiveNodes.named([text], network)
    assert why in str(caught.value)
