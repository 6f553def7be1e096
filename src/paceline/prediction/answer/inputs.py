"""Inputs of a prediction: a check of their types, and a cluster by its names."""

from __future__ import annotations

from typing import Any

from paceline.errors import UserError, shown
from paceline.hardware.cluster import Cluster
from paceline.strategy.strategy import Strategy
from paceline.workload.layers import LayerTable


def check_inputs(workload: object, cluster: object, strategy: object) -> None:
    """Raise UserError if one of the three has another type."""
    if isinstance(workload, LayerTable) and isinstance(cluster, Cluster) and isinstance(strategy, Strategy):
        return
    for value, kind, name in (
        (workload, LayerTable, "Workload"),
        (cluster, Cluster, "Cluster"),
        (strategy, Strategy, "Strategy"),
    ):
        if not isinstance(value, kind):
            raise UserError(f"{name.casefold()} {shown(value)}", f"give a paceline.{name}; the verbs of paceline take names")


def described(cluster: Cluster) -> dict[str, Any]:
    """Return its device, sizes and links by name."""
    return {
        "device": cluster.device.name,
        "devices_per_node": cluster.devices_per_node if cluster.even else cluster.node_text,
        "num_nodes": cluster.num_nodes,
        "intra_link": cluster.intra_link.name,
        "network": cluster.network.name if cluster.num_nodes > 1 else "none",
        **({"nic": cluster.nic.name} if cluster.nic else {}),
        **({"aggregation": cluster.aggregation.name} if cluster.aggregation else {}),
    }
