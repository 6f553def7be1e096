"""A prediction names its cluster, and its figures agree with one another."""

from __future__ import annotations

import paceline
from paceline.prediction.answer.step_answer import described


def test_a_cluster_is_described_by_names() -> None:
    two = paceline.Cluster.named("2x8 A100", network="100Gb/s")
    assert described(two) == {
        "device": "A100 SXM 80GB",
        "devices_per_node": 8,
        "num_nodes": 2,
        "intra_link": two.intra_link.name,
        "network": two.network.name,
    }
    assert described(paceline.Cluster.named("8 A100"))["network"] == "none"
