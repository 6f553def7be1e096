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


def placed(rule: Rule, free: Ints, devices: int, leaf_nodes: int = 0) -> Placement:
    """By a rule; where no node has enough, in one rack, and else in as few racks as can be.

    Args:
        leaf_nodes: nodes of a rack, the first ones together; 0: one rack. Of several racks that hold it, the one where it lies
            on the fewest nodes, and of equals the one that has the least over.
    """
    place = RULES[rule]
    if not leaf_nodes or devices <= free.max(initial=0):
        return place(free, devices)
    racks = np.arange(len(free)) // leaf_nodes
    sums = np.bincount(racks, free).astype(np.int64)
    within = [
        (sums[rack], tuple((node + rack * leaf_nodes, count) for node, count in place(free[racks == rack], devices)))
        for rack in np.flatnonzero(sums >= devices).tolist()
    ]
    if within:
        return min(within, key=lambda of: (len(of[1]), of[0]))[1]
    fullest = np.argsort(-sums, kind="stable")
    chosen = fullest[: int(np.searchsorted(sums[fullest].cumsum(), devices)) + 1]
    return place(np.where(np.isin(racks, chosen), free, 0), devices)


def racks_of(placement: Placement, leaf_nodes: int) -> int:
    """In how many racks of so many nodes a placement lies; ``leaf_nodes`` 0: one."""
    return len({node // leaf_nodes for node, _ in placement}) if leaf_nodes else 1


def in_order(free: Ints, devices: int) -> Placement:
    """From the first node on, whatever is free there: as Gavel's simulators place."""
    before = np.minimum(free.cumsum(), devices)
    if not devices or before[-1] < devices:
        return ()
    counts = np.diff(before, prepend=0)
    return tuple((int(node), int(counts[node])) for node in np.flatnonzero(counts))


def repacked(sizes: Ints, held: Sequence[Placement], devices: Ints, leaf_nodes: int = 0) -> list[Placement]:
    """Place all jobs anew, the largest first, on as few nodes and racks as can be. A job that keeps its number of devices moves
    only where it comes to lie on fewer nodes or racks itself, or a job as large or larger does so in its place. Sizes that
    divide one another are never split (Sia, SOSP 2023, section 3.4).

    Args:
        sizes: devices of each node, free or not. ``held``: where each job is now. ``devices``: what each gets.
        leaf_nodes: as ``placed``.

    Returns:
        The placement of each job; empty where it gets none or not enough are left.
    """
    left, kept = sizes.copy(), np.zeros_like(sizes)
    keeps = np.array([count > 0 and sum(shape(now)) == count for now, count in zip(held, devices.tolist(), strict=True)], bool)
    for index in np.flatnonzero(keeps).tolist():
        _add(kept, held[index], 1)
    placements: list[Placement] = [() for _ in devices]
    for index in np.lexsort((~keeps, -devices)).tolist():
        count, now = int(devices[index]), held[index]
        if not count:
            continue
        if keeps[index]:
            _add(kept, now, -1)
        fewest = placed("fewest_nodes", left, count, leaf_nodes)
        beside = placed("fewest_nodes", np.maximum(left - kept, 0), count, leaf_nodes)  # where no other job has to move
        there = now if keeps[index] and all(left[node] >= part for node, part in now) else ()
        within = [choice for choice in (there, beside) if choice and _spread(choice, leaf_nodes) <= _spread(fewest, leaf_nodes)]
        placements[index] = within[0] if within else fewest
        _add(left, placements[index], -1)
    return placements


def _add(counts: Ints, placement: Placement, sign: int) -> None:
    for node, count in placement:
        counts[node] += sign * count


def _spread(placement: Placement, leaf_nodes: int) -> tuple[int, int]:
    """Racks and nodes: less is better, and one node lies in one rack."""
    return racks_of(placement, leaf_nodes), len(placement)


RULES: dict[Rule, Callable[[Ints, int], Placement]] = {
    "most_free": most_free,
    "fewest_nodes": fewest_nodes,
    "in_order": in_order,
}

__all__ = [
    "RULES",
    "Placement",
    "Rule",
    "fewest_nodes",
    "in_order",
    "most_free",
    "placed",
    "racks_of",
    "repacked",
    "shape",
]
