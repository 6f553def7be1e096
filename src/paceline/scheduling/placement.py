"""Where a job's devices are: which nodes give how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from paceline.array_types import Ints

Placement = tuple[tuple[int, int], ...]
"""Pairs of a node's number and how many of its devices; empty: none."""
Rule = Literal["most_free", "fewest_nodes", "in_order"]


def shape(placement: Placement) -> tuple[int, ...]:
    """Devices of each node, without the nodes' numbers."""
    return tuple(count for _, count in placement)


def most_free(free: Ints, devices: int) -> Placement:
    """From the node with the most free devices on, the first of equals: as the simulators of Tiresias and Optimus place.

    Args:
        free: free devices of each node; it is not changed.
    """
    return _node_by_node(free, devices, lambda left, rest: int(left.argmax()))


def fewest_nodes(free: Ints, devices: int) -> Placement:
    """On as few nodes as can be; what remains goes where it leaves the least over, so that large jobs find whole nodes."""

    def tightest(left: Ints, rest: int) -> int:
        holds = np.flatnonzero(left >= rest)
        return int(holds[left[holds].argmin()]) if holds.size else int(left.argmax())

    return _node_by_node(free, devices, tightest)


def _node_by_node(free: Ints, devices: int, pick: Callable[[Ints, int], int]) -> Placement:
    """What is needed from one node after the other; ``pick`` names the next by what is left of the nodes and of the need."""
    left, rest, chosen = free.copy(), devices, []
    while rest > 0:
        node = pick(left, rest)
        count = min(int(left[node]), rest)
        if count == 0:
            return ()
        chosen.append((node, count))
        left[node] -= count
        rest -= count
    return tuple(chosen)


def in_order(free: Ints, devices: int) -> Placement:
    """From the first node on, whatever is free there: as Gavel's simulators place."""
    before = np.minimum(free.cumsum(), devices)
    if not devices or before[-1] < devices:
        return ()
    counts = np.diff(before, prepend=0)
    return tuple((int(node), int(counts[node])) for node in np.flatnonzero(counts))


def repacked(sizes: Ints, held: Sequence[Placement], devices: Ints) -> list[Placement]:
    """Place all jobs anew, the largest first, on as few nodes as can be; a job that is well placed stays where its nodes are
    free. Sizes that divide one another are never split (Sia, SOSP 2023, section 3.4).

    Args:
        sizes: devices of each node, free or not. ``held``: where each job is now. ``devices``: what each gets.

    Returns:
        The placement of each job; empty where it gets none or not enough are left.
    """
    left = sizes.copy()
    placements: list[Placement] = [() for _ in devices]
    for index in np.argsort(-devices, kind="stable").tolist():
        count = int(devices[index])
        if not count:
            continue
        now = held[index]
        fewest = fewest_nodes(left, count)
        stays = sum(shape(now)) == count and len(now) <= len(fewest) and all(left[node] >= part for node, part in now)
        placements[index] = now if stays else fewest
        for node, part in placements[index]:
            left[node] -= part
    return placements


RULES: dict[Rule, Callable[[Ints, int], Placement]] = {
    "most_free": most_free,
    "fewest_nodes": fewest_nodes,
    "in_order": in_order,
}

__all__ = ["RULES", "Placement", "Rule", "fewest_nodes", "in_order", "most_free", "repacked", "shape"]
