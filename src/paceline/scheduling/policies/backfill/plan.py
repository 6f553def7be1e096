"""Plan of rigid jobs with reservations: which start now, and from when devices are kept for others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from paceline.array_types import Ints
from paceline.scheduling.placement import Placement
from paceline.scheduling.policies.backfill.availability import Availability
from paceline.scheduling.policies.backfill.expected_length import Lengths, expected_ends, expected_seconds
from paceline.scheduling.policies.backfill.node_plan import MOST_KEPT, NodePlan
from paceline.scheduling.state import Decision, State

PASSES = "it delays no job with a reservation"
"""Reason of a start before an earlier job."""


class BackfillPlan:
    """Plan of one decision. Running jobs keep their devices unless they are taken.

    Args:
        by_node: plan with single nodes even if no job requires one.

    Attributes:
        devices, types: as in ``Decision``. ``ends_s``: expected end of each running job.
        gone: devices that preempted jobs still hold, with the end of their grace.
        nodes: devices of each node over time; None: single nodes do not matter.
        waits: True once a job has a reservation. ``reasons``: reasons of jobs that start after that.
        starts_s: expected start of each job that starts now or has a reservation, by its index.
    """

    def __init__(self, state: State, lengths: Lengths = "predicted", by_node: bool = False) -> None:
        self.state, self.lengths = state, lengths
        self.devices, self.types = state.devices.copy(), state.type_index.copy()
        self.starts_s: dict[int, float] = {}
        self.placements: dict[int, Placement] = {}
        self.closed: set[int] = set()
        self.waits, self.reasons = False, dict[int, str]()
        self._seconds: dict[tuple[int, int], float | None] = {}
        self.ends_s = expected_ends(state, lengths)
        self.gone: list[tuple[Placement, float]] = [(leaving.placement, leaving.until_s) for leaving in state.leaving]
        self.nodes: NodePlan | None = None
        if len(state.free) and (by_node or any(job.topology or job.pod_devices > 1 for job in state.jobs)):
            held = np.flatnonzero(state.devices).tolist()
            running = [(state.placements[index], float(self.ends_s[index])) for index in held]
            self.nodes = NodePlan(state, [*running, *self.gone])
        self.available = [self._availability(group) for group in range(len(state.fleet.groups))]

    def _availability(self, group: int) -> Availability:
        state = self.state
        there = np.flatnonzero(state.type_index == group)
        leaving = [leaving for leaving in state.leaving if leaving.type_index == group]
        counts = np.array([*state.devices[there].tolist(), *(each.devices for each in leaving)], np.int64)
        ends_s = np.array([*self.ends_s[there].tolist(), *(each.until_s for each in leaving)])
        return Availability(state.time_s, int(state.capacity[group]) - int(counts.sum()), ends_s, counts)

    def seconds(self, index: int, group: int) -> float | None:
        """Return the expected seconds of a job on a type; see ``expected_seconds``."""
        key = index, group
        if key not in self._seconds:
            self._seconds[key] = expected_seconds(self.state, index, group, self.lengths)
        return self._seconds[key]

    def options(self, index: int, groups: Iterable[int] | None = None) -> list[tuple[float, int]]:
        """Return the expected seconds and the type of each type that a job may use, the fastest first."""
        job, fleet = self.state.jobs[index], self.state.fleet
        legal = [group for group in (range(len(fleet.groups)) if groups is None else groups) if job.may_use(fleet.types[group])]
        timed = [(seconds, group) for group in legal if (seconds := self.seconds(index, group)) is not None]
        return sorted(timed)

    def start(self, index: int, groups: Iterable[int] | None = None) -> bool:
        """Start a job now if no reservation is delayed, on the type where it ends first. Return whether it starts."""
        asked, now_s = int(self.state.requested[index]), self.state.time_s
        for seconds, group in self.options(index, groups):
            if group in self.closed or self.available[group].least(now_s, seconds) < asked:
                continue
            if self.nodes is not None:
                job = self.state.jobs[index]
                place = self.nodes.place(group, asked, seconds, job.topology, job.pod_devices)
                if not place:
                    continue
                self.nodes.hold(place, now_s + seconds)
                self.placements[index] = place
            if self.waits:
                self.reasons[index] = PASSES
            self.devices[index], self.types[index] = asked, group
            self.ends_s[index] = now_s + seconds
            self.starts_s[index] = now_s
            self.available[group].reserve(asked, now_s, seconds)
            return True
        return False

    def earliest(self, index: int, groups: Iterable[int] | None = None) -> tuple[float, float, int]:
        """Return the earliest start of a job, its seconds and its type; the start is inf if no time is known."""
        return self.find_start(index, groups)[:3]

    def find_start(self, index: int, groups: Iterable[int] | None) -> tuple[float, float, int, slice | None]:
        """Return the earliest start, its seconds, its type, and the nodes if the job requires some together."""
        asked = int(self.state.requested[index])
        best: tuple[float, float, int] | None = None
        nodes: slice | None = None
        for seconds, group in self.options(index, groups):
            start_s, there = self._earliest_on(index, asked, seconds, group)
            if best is None or (start_s, seconds, group) < best:
                best, nodes = (start_s, seconds, group), there
        return *(best or (math.inf, math.inf, -1)), nodes

    def reserve(
        self, index: int, groups: Iterable[int] | None = None, found: tuple[float, float, int, slice | None] | None = None
    ) -> bool:
        """Keep devices for a job from its earliest start on. Without a known start its types take no further jobs.

        Args:
            found: its earliest start, as ``find_start`` returned it just before.

        Returns:
            True if it has a reservation.
        """
        self.waits = True
        start_s, seconds, group, nodes = found or self.find_start(index, groups)
        asked = int(self.state.requested[index])
        if start_s == math.inf:
            self.close(index, groups)
            return False
        if self.nodes is not None and nodes is not None:
            self.nodes.keep(nodes, asked, start_s, seconds)
        self.available[group].reserve(asked, start_s, seconds)
        self.starts_s[index] = start_s
        return True

    def close(self, index: int, groups: Iterable[int] | None = None) -> None:
        """Let no further job start on the types that a waiting job may use."""
        self.closed.update(group for _, group in self.options(index, groups))

    def may_start(self, index: int, groups: Iterable[int]) -> bool:
        """Return whether ``start`` may start a job now. Once it is False, it stays False unless jobs are preempted."""
        asked, now_s, job = int(self.state.requested[index]), self.state.time_s, self.state.jobs[index]
        for group in groups:
            if self.free_now(group) < asked or group in self.closed or not job.may_use(self.state.fleet.types[group]):
                continue
            seconds = self.seconds(index, group)
            if seconds is None or self.available[group].least(now_s, seconds) < asked:
                continue
            if self.nodes is None or job.topology != "node" or self.nodes.most_free(group) >= asked:
                return True
        return False

    def free_now(self, group: int) -> int:
        """Return the devices of a type that are free now."""
        return int(self.available[group].free[0])

    def _earliest_on(self, index: int, asked: int, seconds: float, group: int) -> tuple[float, slice | None]:
        counted_s, topology = self.available[group].earliest(asked, seconds), self.state.jobs[index].topology
        if self.nodes is None or not topology or len(self.nodes.kept) >= MOST_KEPT:
            return counted_s, None
        start_s, nodes = self.nodes.earliest(group, asked, seconds, topology, counted_s)
        if counted_s < start_s < math.inf:
            start_s = self.available[group].earliest(asked, seconds, start_s)
        return start_s, nodes

    def give_back(self, available: Availability, other: int, count: int) -> float:
        """Add the devices of a running job from the end of its grace to its expected end, and return the first time."""
        end_s = float(self.ends_s[other])
        until_s = min(self.state.time_s + self.state.jobs[other].grace_s, end_s)
        if until_s < end_s and count:
            available.reserve(-count, until_s, end_s - until_s)
        return until_s

    def take(self, other: int) -> None:
        """Take the devices of a running job, at the end of its grace."""
        end_s = float(self.ends_s[other])
        until_s = self.give_back(self.available[int(self.types[other])], other, int(self.devices[other]))
        placement = self.state.placements[other] if self.state.placements else ()
        self.devices[other], self.types[other] = 0, -1
        self.ends_s[other] = math.inf
        if until_s > self.state.time_s:
            self.gone.append((placement, until_s))
        if self.nodes is not None:
            self.nodes.give_back(placement, until_s, end_s)

    def decision(self, order: Sequence[int]) -> Decision:
        """Return the decision. ``order``: waiting jobs in the order of service."""
        waiting = set(order)
        return Decision(
            devices=self.devices,
            type_index=self.types,
            order=[*order, *(index for index in range(len(self.devices)) if index not in waiting)],
            placements=self.placements,
            reasons=self.reasons,
            holds_until_s=self.steady_until_s(),
        )

    def steady_until_s(self) -> float:
        """Return the time until which the plan is the same without an event: the first expected end."""
        return float(self.ends_s[self.devices > 0].min(initial=math.inf))


def by_priority(state: State) -> Ints:
    """Return the waiting jobs by priority, and in order of arrival."""
    waiting = np.flatnonzero(state.devices == 0)
    priority = np.array([state.jobs[index].priority for index in waiting.tolist()], np.int64)
    return waiting[np.argsort(-priority, kind="stable")]
