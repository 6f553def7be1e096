"""Placement of a job: the devices it holds on each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from paceline.array_types import Ints

Placement = tuple[tuple[int, int], ...]
"""Pairs of a node's number and its devices; empty: none."""
Rule = Literal["most_free", "fewest_nodes", "in_order"]
Domain = Literal["", "node", "rack"]
"""Domain that must hold a whole placement; empty: any nodes."""


def shape(placement: Placement) -> tuple[int, ...]:
    """Return the devices on each node, without the node numbers."""
    return tuple(count for _, count in placement)


def most_free(free: Ints, devices: int) -> Placement:
    """Fill the node with the most free devices first, as the simulators of Tiresias and Optimus do.

    Args:
        free: free devices of each node; it is not changed.
    """
    return _node_by_node(free, devices, lambda left, rest: int(left.argmax()))


def fewest_nodes(free: Ints, devices: int) -> Placement:
    """Use as few nodes as possible. The remainder goes to the node with the fewest sufficient devices, so that whole nodes stay
    free for large jobs."""

    def tightest(left: Ints, rest: int) -> int:
        holds = np.flatnonzero(left >= rest)
        return int(holds[left[holds].argmin()]) if holds.size else int(left.argmax())

    return _node_by_node(free, devices, tightest)


def _node_by_node(free: Ints, devices: int, pick: Callable[[Ints, int], int]) -> Placement:
    """Take devices from one node after another. ``pick`` chooses the next node from the free devices and the remaining need."""
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


def placed(rule: Rule, free: Ints, devices: int, leaf_nodes: int = 0, domain: Domain = "", pod: int = 0) -> Placement:
    """Place devices by a rule, in as few racks as possible.

    Args:
        leaf_nodes: consecutive nodes of a rack; 0: one rack. If several racks fit, the one with the fewest nodes used is
            chosen, then the one with the fewest free devices.
        domain: domain that must hold all devices. If none can, the placement is empty.
        pod: devices that must be on one node, of which ``devices`` is a multiple; 0: any number may.
    """
    if pod > 1:
        pods = placed(rule, free // pod, devices // pod, leaf_nodes, domain)
        return tuple((node, count * pod) for node, count in pods)
    place = RULES[rule]
    if domain == "node":
        return place(np.where(free >= devices, free, 0), devices)
    if not leaf_nodes or (devices <= free.max(initial=0) and not domain):
        return place(free, devices)
    racks = np.arange(len(free)) // leaf_nodes
    sums = np.bincount(racks, free).astype(np.int64)
    within = [
        (sums[rack], tuple((node + rack * leaf_nodes, count) for node, count in place(free[racks == rack], devices)))
        for rack in np.flatnonzero(sums >= devices).tolist()
    ]
    if within:
        return min(within, key=lambda of: (len(of[1]), of[0]))[1]
    if domain:
        return ()
    fullest = np.argsort(-sums, kind="stable")
    chosen = fullest[: int(np.searchsorted(sums[fullest].cumsum(), devices)) + 1]
    return place(np.where(np.isin(racks, chosen), free, 0), devices)


def racks_of(placement: Placement, leaf_nodes: int) -> int:
    """Return the number of racks that a placement spans. ``leaf_nodes``: nodes of a rack; 0: one rack."""
    return len({node // leaf_nodes for node, _ in placement}) if leaf_nodes else 1


def in_order(free: Ints, devices: int) -> Placement:
    """Fill nodes in order of their numbers, as Gavel's simulator does."""
    before = np.minimum(free.cumsum(), devices)
    if not devices or before[-1] < devices:
        return ()
    counts = np.diff(before, prepend=0)
    return tuple((int(node), int(counts[node])) for node in np.flatnonzero(counts))


def repacked(sizes: Ints, held: Sequence[Placement], devices: Ints, leaf_nodes: int = 0) -> list[Placement]:
    """Place all jobs again, the largest first, on as few nodes and racks as possible.

    A job that keeps its number of devices moves only if it or an equally large job then spans fewer nodes or racks. Sizes that
    divide one another are never split (Sia, SOSP 2023, section 3.4).

    Args:
        sizes: devices of each node, free or not.
        held: present placement of each job.
        devices: number of devices that each job gets.
        leaf_nodes: as in ``placed``.

    Returns:
        Placement of each job; empty if it gets none or does not fit.
    """
    left, kept, largest = sizes.copy(), np.zeros_like(sizes), int(sizes.max(initial=0))
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
        there = now if keeps[index] and all(left[node] >= part for node, part in now) else ()
        placements[index] = (
            there if there and is_tight(there, largest, leaf_nodes) else _moved(left, kept, count, there, leaf_nodes)
        )
        _add(left, placements[index], -1)
    return placements


def _moved(left: Ints, kept: Ints, count: int, there: Placement, leaf_nodes: int) -> Placement:
    """Return the placement of a job of ``count`` devices, which is at ``there`` only if it could not gain by a move.

    Args:
        left: devices that no larger job has. ``kept``: those of them that smaller jobs hold.
    """
    fewest = placed("fewest_nodes", left, count, leaf_nodes)
    undisturbed = placed("fewest_nodes", np.maximum(left - kept, 0), count, leaf_nodes)  # moves no other job
    within = [
        choice for choice in (there, undisturbed) if choice and _spread(choice, leaf_nodes) <= _spread(fewest, leaf_nodes)
    ]
    return within[0] if within else fewest


def is_tight(placement: Placement, largest: int, leaf_nodes: int = 0) -> bool:
    """Return whether no placement of as many devices could span fewer nodes or racks.

    Args:
        largest: devices of the largest node.
    """
    nodes = len(placement)
    if nodes == 1:
        return True
    least = -(-sum(count for _, count in placement) // max(largest, 1))
    return nodes == least and racks_of(placement, leaf_nodes) == (-(-least // leaf_nodes) if leaf_nodes else 1)


def _add(counts: Ints, placement: Placement, sign: int) -> None:
    for node, count in placement:
        counts[node] += sign * count


def _spread(placement: Placement, leaf_nodes: int) -> tuple[int, int]:
    """Return the number of racks and nodes of a placement, to be minimized."""
    return racks_of(placement, leaf_nodes), len(placement)


RULES: dict[Rule, Callable[[Ints, int], Placement]] = {
    "most_free": most_free,
    "fewest_nodes": fewest_nodes,
    "in_order": in_order,
}
