"""Conditions that owners state on the devices of their jobs, enforced on the decisions of every policy.

A job that may not be preempted, or not yet, keeps its devices: the policy decides on the other jobs and devices. A job that
requires a node or a rack starts when one has room, and a job on a fraction of a device may share it. Tasks of an array start as
far as its limit allows. Jobs in their grace are hidden from the policy, which counts on their devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from paceline.array_types import Ints
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement, placed
from paceline.scheduling.shared_devices import best_fit
from paceline.scheduling.state import Decision, Policy, State

LIMIT_SLACK_S = 90.0
"""Time beyond its limit before a job is ended: Slurm checks limits once a minute and kills 30 s after the signal (KillWait)."""
PATIENCE_S = 600.0
"""Wait after which the free devices of one node or rack are kept for the oldest job that requires it."""
MOST_CALLS = 64
"""Most calls of a policy for one decision."""
Value = TypeVar("Value")


def has_conditions(job: Job) -> bool:
    """Return whether decisions on a job must be checked."""
    return (
        not job.preemptible
        or job.min_run_s > 0
        or bool(job.topology)
        or job.pod_devices > 1
        or job.share < 1
        or job.array_limit > 0
    )


def is_protected(job: Job, held_s: float) -> bool:
    """Return whether a running job keeps its devices. Fractions of a device are never taken away."""
    return not job.preemptible or job.share < 1 or held_s < job.min_run_s


def decide(policy: Policy, state: State) -> Decision:
    """Return the decision of a policy that meets the conditions of all jobs. The state may have jobs in their grace."""
    attempt = _Attempt(state)
    for _ in range(MOST_CALLS):
        decision = attempt.call(policy)
        if not attempt.improved(decision):
            break
    return attempt.result()


@dataclass
class _Starts:
    """Placements of new jobs, and the devices that remain. ``opened``: devices that jobs share now, by type."""

    free: Ints
    loads: dict[int, list[float]]
    placements: dict[int, Placement] = field(default_factory=dict)
    opened: int = 0
    fractions: int = 0


class _Attempt:
    """Search for a decision: the policy is asked again with the jobs hidden that it may not decide on."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.leaving = {leaving.job for leaving in state.leaving if leaving.job >= 0}
        shared = {index for index, job in enumerate(state.jobs) if job.share < 1 and state.devices[index]}
        self.protected = shared - self.leaving
        self.excess = _excess_tasks(state)
        self.refused: set[int] = set(self.excess)
        self.started: dict[int, tuple[Placement, int]] = {}
        self.blocked: slice | Ints | None = None
        self.until_s = math.inf
        self.decision: Decision | None = None
        self.visible: Ints = np.zeros(0, np.int64)
        self.starts: _Starts | None = None

    def call(self, policy: Policy) -> Decision:
        """Ask the policy about the visible jobs, and return its decision."""
        state = self.state
        hidden = self.leaving | self.protected | self.refused | set(self.started)
        self.visible = np.array([index for index in range(len(state.jobs)) if index not in hidden], np.int64)
        whole = not hidden and not state.leaving and not state.loads and self.blocked is None
        part = state if whole else state.part(self.visible, self._capacity(), self._free())
        nothing = np.zeros(0, np.int64)
        self.decision = policy(part) if len(part.jobs) else Decision(devices=nothing, type_index=nothing)
        return self.decision

    def _shared_by_type(self) -> Ints:
        """Return the number of shared devices of each type before this decision."""
        types = self.state.fleet.node_types
        shared = np.zeros(len(self.state.capacity), np.int64)
        for node, loads in self.state.loads.items():
            shared[types[node]] += len(loads)
        return shared

    def _capacity(self) -> Ints:
        """Return the devices that the policy may give."""
        state, capacity = self.state, self.state.capacity - self._shared_by_type()
        for index in self.protected:
            if state.jobs[index].share == 1:
                capacity[state.type_index[index]] -= state.devices[index]
        if self.started:
            before = self._initial()
            after = self._with_started()
            taken = np.bincount(state.fleet.node_types, before.free - after.free, len(capacity))
            capacity -= taken.astype(np.int64)
        if self.blocked is not None:
            kind = int(state.fleet.node_types[self.blocked][0])
            capacity[kind] -= int(self._with_started().free[self.blocked].sum())
        return np.asarray(np.maximum(capacity, 0), np.int64)

    def _free(self) -> Ints:
        """Return the free devices of each node that the policy may use."""
        free = self._with_started().free
        if self.blocked is not None:
            free[self.blocked] = 0
        return free

    def _initial(self) -> _Starts:
        return _Starts(self.state.free.copy(), {node: list(loads) for node, loads in self.state.loads.items()})

    def _with_started(self) -> _Starts:
        starts = self._initial()
        for index, (placement, _) in self.started.items():
            _occupy(starts, self.state.jobs[index], placement)
        return starts

    def improved(self, decision: Decision) -> bool:
        """Return whether the policy must be asked again, because its decision breaks a condition or devices remain."""
        state, seen = self.state, self.visible
        held, types = state.devices[seen], state.type_index[seen]
        changed = (decision.devices != held) | ((np.asarray(decision.type_index) != types) & (decision.devices > 0))
        broken = [
            int(index)
            for index in seen[changed & (held > 0)]
            if is_protected(state.jobs[index], float(state.held_s[index])) and not self._removed(decision, int(index))
        ]
        if broken:
            self.protected.update(broken)
            ends = [state.time_s + state.jobs[index].min_run_s - float(state.held_s[index]) for index in broken]
            self.until_s = min([self.until_s, *(end for end in ends if end > state.time_s)])
            return True
        self.starts = None
        begin = [int(index) for index in seen[changed & (decision.devices > 0)]]
        fractions = [int(index) for index in seen[held == 0] if state.jobs[index].share < 1]
        special = self.started or self.blocked is not None or fractions
        tied = any(state.jobs[index].topology or state.jobs[index].pod_devices > 1 for index in begin)
        if not special and not tied:
            return False
        failed = self._place(decision, changed)
        if failed:
            self._refuse(failed)
            return True
        assert self.starts is not None
        fresh = [index for index in begin if state.jobs[index].share < 1]
        others = len(seen) > len(begin)
        if fresh and others and self.starts.fractions > self.starts.opened:
            kinds = dict(zip(seen.tolist(), np.asarray(decision.type_index).tolist(), strict=True))
            self.started |= {index: (self.starts.placements[index], kinds[index]) for index in fresh}
            return True
        self._pack([index for index in fractions if index not in self.starts.placements], begin)
        return False

    def _pack(self, fractions: Sequence[int], begin: Sequence[int]) -> None:
        """Start jobs on the rest of devices that are shared already, unless a whole device is due to an older job."""
        state, starts = self.state, self.starts
        assert starts is not None
        waiting = set(np.flatnonzero(state.devices == 0).tolist()) - set(begin) - set(self.started)
        whole = [index for index in waiting if state.jobs[index].share == 1]
        for index in sorted(fractions, key=lambda index: (-state.jobs[index].priority, state.arrival_s[index])):
            job = state.jobs[index]
            for group, name in enumerate(state.fleet.types):
                older = any(state.jobs[other].may_use(name) and _before(state, other, index) for other in whole)
                if older or not job.may_use(name):
                    continue
                if placement := _fullest(starts, state.fleet.nodes_of(group), job.share):
                    _occupy(starts, job, placement)
                    self.started[index] = placement, group
                    break

    def _removed(self, decision: Decision, index: int) -> bool:
        return int(np.searchsorted(self.visible, index)) in decision.removed

    def _place(self, decision: Decision, changed: np.ndarray) -> list[int]:
        """Place the jobs that start, in the policy's order, and return those that find no place."""
        state, seen = self.state, self.visible
        starts = self._with_started()
        for row in np.flatnonzero(changed & (state.devices[seen] > 0)).tolist():
            index = int(seen[row])
            if not decision.grace_s.get(row, state.jobs[index].grace_s):
                for node, count in state.placements[index]:
                    starts.free[node] += count
        if self.blocked is not None:
            starts.free[self.blocked] = 0
        failed = []
        for row in range(len(seen)) if decision.order is None else decision.order:
            index, devices = int(seen[row]), int(decision.devices[row])
            if not changed[row] or not devices:
                continue
            if state.devices[index] and decision.grace_s.get(int(row), state.jobs[index].grace_s):
                continue
            chosen = decision.placements.get(int(row))
            placement = chosen or self._found(starts, decision, state.jobs[index], int(decision.type_index[row]), devices)
            if placement:
                _occupy(starts, state.jobs[index], placement)
                starts.placements[index] = placement
            elif not state.leaving:
                failed.append(index)
        self.starts = starts
        return failed

    def _found(self, starts: _Starts, decision: Decision, job: Job, group: int, devices: int) -> Placement:
        nodes = self.state.fleet.nodes_of(group)
        if job.share < 1 and (shared := _fullest(starts, nodes, job.share)):
            return shared
        free, leaf_nodes = starts.free[nodes], self.state.fleet.groups[group].leaf_nodes
        place = placed(decision.rule, free, devices, leaf_nodes, job.topology, job.pod_devices)
        return tuple((node + nodes.start, count) for node, count in place)

    def _refuse(self, failed: Sequence[int]) -> None:
        """Hide jobs without a place. If the oldest has lost its patience, keep free devices for it."""
        state = self.state
        self.refused.update(failed)
        tied = [index for index in failed if state.jobs[index].topology]
        if self.blocked is not None or not tied:
            return
        oldest = min(tied, key=lambda index: (-state.jobs[index].priority, state.arrival_s[index]))
        patient_s = float(state.arrival_s[oldest]) + PATIENCE_S
        if patient_s > state.time_s:
            self.until_s = min(self.until_s, patient_s)
        else:
            self.blocked = _best_domain(state, state.jobs[oldest])

    def result(self) -> Decision:
        """Return the last decision, for all jobs."""
        state, decision = self.state, self.decision
        assert decision is not None
        devices, types = state.devices.copy(), state.type_index.copy()
        devices[list(self.refused)] = 0
        devices[self.visible], types[self.visible] = decision.devices, decision.type_index
        rows = range(len(self.visible)) if decision.order is None else decision.order
        order = [*self.started, *(int(self.visible[row]) for row in rows)]
        placements = {int(self.visible[row]): place for row, place in decision.placements.items()}
        for index, (placement, kind) in self.started.items():
            devices[index], types[index], placements[index] = sum(count for _, count in placement), kind, placement
        if self.starts is not None:
            begin = set(self.visible[(decision.devices > 0) & (state.devices[self.visible] == 0)].tolist())
            for index in begin - set(self.starts.placements):
                devices[index] = 0
            placements |= self.starts.placements
        return replace(
            decision,
            devices=devices,
            type_index=types,
            order=order,
            placements=placements,
            repack=decision.repack and self.starts is None,
            wake_s=min(decision.wake_s, self.until_s),
            holds_until_s=min(decision.holds_until_s, self.until_s),
            reasons={**_renamed(decision.reasons, self.visible), **self.excess},
            removed=_renamed(decision.removed, self.visible),
            preempted={int(self.visible[row]): int(self.visible[other]) for row, other in decision.preempted.items()},
            grace_s=_renamed(decision.grace_s, self.visible),
        )


def _excess_tasks(state: State) -> dict[int, str]:
    """Return the waiting tasks of arrays beyond those that may run at once, with the reason."""
    limited = [index for index, job in enumerate(state.jobs) if job.array_limit]
    room = {state.jobs[index].array: state.jobs[index].array_limit for index in limited}
    for index in limited:
        room[state.jobs[index].array] -= bool(state.devices[index])
    excess = {}
    waiting = [index for index in limited if not state.devices[index]]
    for index in sorted(waiting, key=lambda index: (-state.jobs[index].priority, state.arrival_s[index], index)):
        job = state.jobs[index]
        if room[job.array] > 0:
            room[job.array] -= 1
        else:
            excess[index] = f"its array {job.array} runs at most {job.array_limit:,} tasks at once"
    return excess


def _renamed(values: Mapping[int, Value], visible: Ints) -> dict[int, Value]:
    return {int(visible[row]): value for row, value in values.items()}


def _occupy(starts: _Starts, job: Job, placement: Placement) -> None:
    """Take the devices of a placement. A fraction shares a device of its node if one has room."""
    for node, count in placement:
        if job.share == 1:
            starts.free[node] -= count
            continue
        starts.fractions += 1
        loads = starts.loads.setdefault(node, [])
        slot = best_fit(loads, job.share)
        if slot is None:
            loads.append(job.share)
            starts.free[node] -= 1
            starts.opened += 1
        else:
            loads[slot] += job.share


def _fullest(starts: _Starts, nodes: slice, share: float) -> Placement:
    """Return the fullest shared device of these nodes with room for a fraction; empty if there is none."""
    slots = {node: best_fit(loads, share) for node, loads in starts.loads.items() if nodes.start <= node < nodes.stop}
    fits = {node: starts.loads[node][slot] for node, slot in slots.items() if slot is not None}
    return ((max(fits, key=lambda node: fits[node]), 1),) if fits else ()


def _before(state: State, one: int, other: int) -> bool:
    """Return whether a job precedes another by priority and arrival."""
    first, second = ((-state.jobs[index].priority, state.arrival_s[index]) for index in (one, other))
    return bool(first < second)


def _best_domain(state: State, job: Job) -> slice | None:
    """Return the nodes of the node or rack with the most free devices, among those large enough for a job."""
    best: tuple[int, slice] | None = None
    for group, nodes in enumerate(state.fleet.groups):
        if not job.may_use(nodes.device):
            continue
        there = state.fleet.nodes_of(group)
        size = 1 if job.topology == "node" else nodes.leaf_nodes or nodes.nodes
        for first in range(there.start, there.stop, size):
            domain = slice(first, min(first + size, there.stop))
            free = int(state.free[domain].sum())
            if state.fleet.node_devices[domain].sum() >= job.devices and (best is None or free > best[0]):
                best = free, domain
    return best[1] if best else None
