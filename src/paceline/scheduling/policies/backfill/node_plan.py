"""Free devices of single nodes and racks over time, for jobs that require one of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.placement import Domain, Placement, placed
from paceline.scheduling.policies.backfill.availability import ROUNDING_S, Availability
from paceline.scheduling.state import State

MOST_KEPT = 8
"""Most nodes or racks that are kept for jobs at a time. Further jobs wait without."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Devices of one node or rack, ``nodes``, that are kept for a job. ``available``: free devices there over time."""

    nodes: slice
    devices: int
    start_s: float
    seconds: float
    available: Availability


class NodePlan:
    """Devices of each node over time.

    Args:
        holds: placements with the times at which they end.

    Attributes:
        free: free devices of each node.
    """

    def __init__(self, state: State, holds: Iterable[tuple[Placement, float]]) -> None:
        self.state, self.free = state, state.free.copy()
        self.kept: list[_Kept] = []
        rows = [(node, count, end_s) for placement, end_s in holds for node, count in placement]
        self._nodes = np.array([node for node, _, _ in rows], np.int64)
        self._counts = np.array([count for _, count, _ in rows], np.int64)
        self._ends_s = np.array([end_s for _, _, end_s in rows], float)
        self._legal: dict[tuple[int, int, Domain], Ints] = {}
        self._first_s: dict[tuple[int, int, Domain], Array] = {}
        self._over_time: dict[tuple[int, int], Availability] = {}

    def most_free(self, group: int) -> int:
        """Return the most free devices of a node of a type now."""
        return int(self.free[self.state.fleet.nodes_of(group)].max())

    def place(
        self, group: int, devices: int, seconds: float, domain: Domain, pod: int = 0, freed: Iterable[Placement] = ()
    ) -> Placement:
        """Place devices from now on, where they are not kept for others. The placement is empty if there is no room.

        Args:
            pod: devices that must be on one node; 0: any number may.
            freed: devices that count as free although jobs hold them.
        """
        free, now_s, fleet = self.free.copy(), self.state.time_s, self.state.fleet
        freed = tuple(freed)
        for placement in freed:
            for node, count in placement:
                free[node] += count
        for kept in self.kept:
            if now_s + seconds > kept.start_s + ROUNDING_S:
                more = sum(devices_on(placement, kept.nodes) for placement in freed)
                _limit(free[kept.nodes], max(kept.available.least(now_s, seconds) + more, 0))
        nodes = fleet.nodes_of(group)
        place = placed("fewest_nodes", free[nodes], devices, fleet.groups[group].leaf_nodes, domain, pod)
        return tuple((node + nodes.start, count) for node, count in place)

    def hold(self, placement: Placement, end_s: float) -> None:
        """Take the devices of a placement until a time."""
        for node, count in placement:
            self.free[node] -= count
        self._add(placement, end_s)
        self._forget()
        for kept in self.kept:
            if count := devices_on(placement, kept.nodes):
                kept.available.reserve(count, self.state.time_s, end_s - self.state.time_s)

    def give_back(self, placement: Placement, until_s: float, end_s: float) -> None:
        """Free the devices of a placement at ``until_s`` instead of ``end_s``."""
        now_s = self.state.time_s
        self._forget()
        for node, count in placement:
            row = np.flatnonzero((self._nodes == node) & (self._ends_s == end_s) & (self._counts == count))[0]
            self._ends_s[row] = until_s
            if until_s <= now_s:
                self._counts[row] = 0
                self.free[node] += count
        for kept in self.kept:
            if (count := devices_on(placement, kept.nodes)) and until_s < end_s:
                kept.available.reserve(-count, until_s, end_s - until_s)

    def _add(self, placement: Placement, end_s: float) -> None:
        nodes, counts = zip(*placement, strict=True)
        self._nodes = np.concatenate([self._nodes, np.array(nodes, np.int64)])
        self._counts = np.concatenate([self._counts, np.array(counts, np.int64)])
        self._ends_s = np.concatenate([self._ends_s, np.full(len(nodes), end_s)])

    def keep(self, nodes: slice, devices: int, start_s: float, seconds: float) -> None:
        """Keep devices of a node or rack from a time on."""
        available = self.within(nodes)
        available.reserve(devices, start_s, seconds)
        for kept in self.kept:
            if _overlap(kept.nodes, nodes):
                kept.available.reserve(devices, start_s, seconds)
        self.kept.append(_Kept(nodes, devices, start_s, seconds, available))
        self._over_time = {key: over for key, over in self._over_time.items() if not _overlap(slice(*key), nodes)}

    def _forget(self) -> None:
        """Drop what was computed for devices that another job holds now."""
        self._first_s.clear()
        self._over_time.clear()

    def within(self, nodes: slice) -> Availability:
        """Return the free devices of some nodes over time, without those that are kept."""
        return self._within(nodes).copy()

    def _within(self, nodes: slice) -> Availability:
        """Return what ``within`` returns, kept until a job is placed: callers must not change it."""
        key = nodes.start, nodes.stop
        if key not in self._over_time:
            self._over_time[key] = self._made_within(nodes)
        return self._over_time[key]

    def _made_within(self, nodes: slice) -> Availability:
        there = (self._nodes >= nodes.start) & (self._nodes < nodes.stop)
        free = int(self.free[nodes].sum())
        available = Availability(self.state.time_s, free, self._ends_s[there], self._counts[there])
        for kept in self.kept:
            if _overlap(kept.nodes, nodes):
                available.reserve(kept.devices, kept.start_s, kept.seconds)
        return available

    def domains(self, group: int, devices: int, domain: Domain) -> list[slice]:
        """Return the nodes of each node or rack that can hold these devices."""
        return [self._domain(group, number, domain) for number in self._large_enough(group, devices, domain).tolist()]

    def _domain(self, group: int, number: int, domain: Domain) -> slice:
        size, there = self._size(group, domain), self.state.fleet.nodes_of(group)
        first = there.start + number * size
        return slice(first, min(first + size, there.stop))

    def _large_enough(self, group: int, devices: int, domain: Domain) -> Ints:
        """Return the numbers of the nodes or racks of a type that can hold these devices."""
        key = group, devices, domain
        if key not in self._legal:
            size, there = self._size(group, domain), self.state.fleet.nodes_of(group)
            sums = np.add.reduceat(self.state.fleet.node_devices[there], np.arange(0, there.stop - there.start, size))
            self._legal[key] = np.flatnonzero(sums >= devices)
        return self._legal[key]

    def _size(self, group: int, domain: Domain) -> int:
        nodes = self.state.fleet.groups[group]
        return 1 if domain == "node" else nodes.leaf_nodes or nodes.nodes

    def earliest(self, group: int, devices: int, seconds: float, domain: Domain, after_s: float) -> tuple[float, slice | None]:
        """Return the first time at which one node or rack has devices for some seconds, and its nodes; inf if there is none."""
        numbers = self._large_enough(group, devices, domain)
        key = group, devices, domain
        if key not in self._first_s:
            self._first_s[key] = self._without_kept(group, devices, domain)
        bounds = np.maximum(self._first_s[key][numbers], after_s)
        best: tuple[float, slice | None] = (math.inf, None)
        for place in np.argsort(bounds, kind="stable").tolist():
            bound = float(bounds[place])
            if bound >= best[0]:
                break
            nodes = self._domain(group, int(numbers[place]), domain)
            exact = any(_overlap(kept.nodes, nodes) for kept in self.kept)
            moment_s = self._within(nodes).earliest(devices, seconds, after_s) if exact else bound
            if moment_s < best[0]:
                best = moment_s, nodes
        return best

    def _without_kept(self, group: int, devices: int, domain: Domain) -> Array:
        """Return the first time at which each domain has the devices if none are kept for others."""
        there, size = self.state.fleet.nodes_of(group), self._size(group, domain)
        count = -(-(there.stop - there.start) // size)
        of_node = (np.arange(there.start, there.stop) - there.start) // size
        free = np.bincount(of_node, self.free[there], count)
        first_s = np.where(free >= devices, self.state.time_s, math.inf)
        mine = np.flatnonzero((self._nodes >= there.start) & (self._nodes < there.stop) & np.isfinite(self._ends_s))
        if not mine.size:
            return first_s
        places = (self._nodes[mine] - there.start) // size
        order = np.lexsort((self._ends_s[mine], places))
        places, ends_s = places[order], self._ends_s[mine][order]
        sums = np.cumsum(self._counts[mine][order]).astype(float)
        begins = np.flatnonzero(np.diff(places, prepend=-1))
        before = np.concatenate([[0.0], sums])[begins]
        total = sums - np.repeat(before, np.diff(np.append(begins, len(places)))) + free[places]
        enough = total >= devices
        np.minimum.at(first_s, places[enough], np.maximum(ends_s[enough], self.state.time_s))
        return np.asarray(first_s)


def devices_on(placement: Placement, nodes: slice) -> int:
    """Return the devices of a placement on some nodes."""
    return sum(count for node, count in placement if nodes.start <= node < nodes.stop)


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)


def _limit(free: Ints, most: int) -> None:
    """Reduce the free devices of nodes to a sum, from those with the fewest first. ``free`` is changed."""
    excess = int(free.sum()) - most
    for node in np.argsort(free, kind="stable").tolist():
        if excess <= 0:
            return
        taken = min(int(free[node]), excess)
        free[node] -= taken
        excess -= taken
