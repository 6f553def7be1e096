"""Where a job's devices are: which nodes give how many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from paceline.array_types import Ints

Placement = tuple[tuple[int, int], ...]
"""Pairs of a node's number and how many of its devices; empty: none."""
Rule = Literal["most_free", "fewest_nodes"]


def shape(placement: Placement) -> tuple[int, ...]:
    """Devices of each node, without the nodes' numbers."""
    return tuple(count for _, count in placement)


def most_free(free: Ints, devices: int) -> Placement:
    """From the node with the most free devices on, the first of equals: as the simulators of Tiresias and Optimus place.

    Args:
        free: free devices of each node; it is not changed.
    """
    left, rest, chosen = free.copy(), devices, []
    while rest > 0:
        node = int(left.argmax())
        count = min(int(left[node]), rest)
        if count == 0:
            return ()
        chosen.append((node, count))
        left[node] -= count
        rest -= count
    return tuple(chosen)


def fewest_nodes(free: Ints, devices: int) -> Placement:
    """On as few nodes as can be; what remains goes where it leaves the least over, so that large jobs find whole nodes."""
    left, rest, chosen = free.copy(), devices, []
    while rest > 0:
        holds = np.flatnonzero(left >= rest)
        node = int(holds[left[holds].argmin()]) if holds.size else int(left.argmax())
        count = min(int(left[node]), rest)
        if count == 0:
            return ()
        chosen.append((node, count))
        left[node] -= count
        rest -= count
    return tuple(chosen)


RULES: dict[Rule, Callable[[Ints, int], Placement]] = {"most_free": most_free, "fewest_nodes": fewest_nodes}

__all__ = ["RULES", "Placement", "Rule", "fewest_nodes", "most_free", "shape"]
