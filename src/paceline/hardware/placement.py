"""Placement of a cluster's ranks on nodes and below leaf switches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from paceline.errors import UserError, check_count, shown

NodeSizes: TypeAlias = int | tuple[int, ...]
"""Devices of a node: one number for all nodes, or one for each where they differ."""
_SIZES = re.compile(r"\d{1,9}(\s*\+\s*\d{1,9})*")


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of ranks that numbers nodes, then leaf switches, in order: adjacent ranks are close to each other.

    Attributes:
        sizes: devices of each node.
        leaf_nodes: nodes of a leaf switch; 0: no switch has less bandwidth upwards than downwards.
        oversubscription: bandwidth of a leaf's nodes together / bandwidth of its links to other leaves.
    """

    sizes: NodeSizes
    leaf_nodes: int = 0
    oversubscription: float = 1.0


Places: TypeAlias = int | Placement
"""A placement; a number for equal nodes of so many devices below switches that do not block."""


def placement(places: Places) -> Placement:
    """Convert to a ``Placement``."""
    return Placement(places) if isinstance(places, int) else places


def equal(sizes: NodeSizes) -> NodeSizes:
    """Return the common number of devices if all nodes have equally many, else all numbers.

    Raises:
        UserError: no node, or one without a device.
    """
    if not isinstance(sizes, tuple | list):
        return sizes
    if not sizes:
        raise UserError("a cluster without nodes", "give the devices of each, such as (1, 7)")
    for size in sizes:
        check_count(size, "members of a node")
    return sizes[0] if len(set(sizes)) == 1 else tuple(sizes)


def sizes_text(sizes: NodeSizes) -> str:
    """Format node sizes: ``8``, or ``1+7`` for unequal nodes."""
    return str(sizes) if isinstance(sizes, int) else "+".join(map(str, sizes))


def nodes_text(sizes: NodeSizes | str, nodes: int) -> str:
    """Format nodes: ``8``, ``2 x 8`` for two nodes of eight, ``1+7`` for unequal nodes. ``sizes``: devices of every node, or of
    each."""
    each = sizes if isinstance(sizes, str) else sizes_text(sizes)
    return f"{nodes} x {each}" if nodes > 1 and "+" not in each else each


def parse_sizes(text: str) -> NodeSizes:
    """Parse node sizes: ``8`` (nodes of eight devices), ``1+7`` (of one and of seven), ``4+4`` (two of four).

    Raises:
        UserError: anything else.
    """
    if not _SIZES.fullmatch(text.strip()):
        raise UserError(f"{shown(text)} devices a node", "write 8, or 1+7 for a node of one and a node of seven")
    sizes = tuple(int(part) for part in text.split("+"))
    return sizes if len(sizes) > 1 else sizes[0]
