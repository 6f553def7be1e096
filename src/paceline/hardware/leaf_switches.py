"""Leaf switches that a user describes: nodes per switch, and the ratio of bandwidth down to bandwidth up."""

from __future__ import annotations

from paceline.errors import UserError
from paceline.hardware.cluster import Cluster


def parse_oversubscription(text: str) -> float:
    """Parse an oversubscription, ``2:1`` or ``2``: bandwidth down / bandwidth up. Raises UserError for anything else."""
    down, colon, up = text.partition(":")
    try:
        return float(down) / (float(up) if colon else 1.0)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"oversubscription {text!r}", "write 2:1, or 2") from None


def on_leaves(machines: Cluster, leaf_nodes: int, oversubscription: float) -> Cluster:
    """Return the cluster below such leaf switches. With ``leaf_nodes`` 0 and ``oversubscription`` 1, no switch blocks.

    Raises:
        UserError: switches that change nothing, or as ``Cluster.of_nodes``.
    """
    if leaf_nodes == 0 and oversubscription == 1:
        return machines.changed(leaf_nodes=0, oversubscription=1.0) if machines.leaf_nodes else machines
    placed = machines.changed(leaf_nodes=leaf_nodes, oversubscription=oversubscription)
    nodes = "1 node" if leaf_nodes == 1 else f"{leaf_nodes} nodes"
    if oversubscription == 1:
        raise UserError(
            f"leaf switches of {nodes} without oversubscription, which change nothing",
            "give oversubscription too, such as 2:1, or leave them out",
        )
    if not placed.leaf_nodes:
        lie = "1 node lies" if placed.num_nodes == 1 else f"all {placed.num_nodes} nodes lie"
        raise UserError(
            f"leaf switches of {nodes} change nothing: {lie} below one of them",
            "give fewer nodes of a leaf switch, or leave them out",
        )
    return placed
