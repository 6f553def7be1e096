"""Ageing: a job that waited far longer than jobs run gets devices for a lease, under any policy.

A job is overdue once it has waited longer than each of

- ``PATIENCE`` times the mean time that jobs spend on devices: a reservation from a threshold of (wait + runtime) / runtime on
  (selective reservation: Srinivasan, Kettimuthu, Subramani, Sadayappan, JSSPP 2002).
- ``PATIENCE`` times its own time on devices (Tiresias, NSDI 2019, section 4, whose knob compares both).
- the length that it is known to have.

The mean time on devices is that of all jobs so far over the number of ended ones, as jobs that still run are cut short. Chosen
in sight of Pollux's workload 1 at twice its load and of one adversarial trace: the mean completion in its place doubled the
worst wait. ``PATIENCE`` was fixed before.

Overdue jobs take at most ``SHARE`` of the devices of a type, or one job at a time. The policy distributes the rest as if they
were away. So the policy is never slower than on ``1 - SHARE`` of the cluster, and overdue jobs are served in the order of their
due times on the other part (preferential sharing: Purohit, Svitkina, Kumar, NeurIPS 2018).

Overdue jobs leave a backlog. Until no job waits, running jobs of unknown length keep their devices if ended jobs' times on
devices vary less than exponential ones. Taking turns then makes the mean completion longer than first in, first out, as a job
that has run long is near its end. Otherwise it makes it shorter, and the policy decides (squared coefficient of variation below
and above 1: Kleinrock, Queueing Systems 2, 1976, section 4.4). Chosen in sight of one stream of equal jobs with a large one.
A job of known length keeps its devices if no waiting job is shorter than its rest or needs fewer devices: another job in its
place could only end later (shortest remaining time first: Schrage, Operations Research 16, 1968).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.fleet import MOST_DEVICES
from paceline.scheduling.state import Decision, Policy, State
from paceline.units import format_seconds

PATIENCE = 4.0
"""Multiple of the mean time on devices, and of a job's own one, after which a waiting job is overdue: a stretch of 5."""
SHARE = 0.5
"""Part of the devices of a type for overdue jobs. One job may take more."""
LONGEST_S = 7 * 86400.0
"""Longest wait in any case: the age at which Slurm's age factor is full (PriorityMaxAge, 7 days by default)."""
FEWEST_ENDED = 20
"""Ended jobs from which the variation of their times counts."""
MARGIN_S = 1e-6
OVERDUE = "it was overdue"
"""First words of the reason of such a start."""
_TAG = "aged"
_BACKLOG = "backlog"


@dataclass(frozen=True, slots=True)
class _Leases:
    """Memory between decisions.

    Attributes:
        leases: end of the lease by job, or its deadline. ``inner``: memory of the policy.
        backlog: True from the start of an overdue job until no job waits.
    """

    leases: Mapping[str, float]
    inner: Any = None
    backlog: bool = False

    @classmethod
    def read(cls, memory: Any) -> _Leases:
        """Read ``to_plain``. Anything else is memory of the policy alone."""
        if isinstance(memory, dict) and _TAG in memory:
            return cls(memory[_TAG], memory["inner"], memory.get(_BACKLOG, False))
        return cls({}, memory)

    def to_plain(self) -> dict[str, Any]:
        """Return values that JSON holds, if it holds those of the policy."""
        return {_TAG: dict(self.leases), "inner": self.inner, **({_BACKLOG: True} if self.backlog else {})}


Held = Mapping[int, tuple[int, int]]
"""Devices and their type by job."""


def aged(policy: Policy, share: float = SHARE) -> Policy:
    """Wrap a policy so that no job starves.

    Args:
        share: as ``SHARE``.
    """

    def decide(state: State) -> Decision:
        memory = _Leases.read(state.memory)
        leases = {name: end_s for name, end_s in memory.leases.items() if end_s > state.time_s + MARGIN_S}
        kept = _kept(state, leases)
        settled = _settled(state) if memory.backlog else {}
        decision = _around(policy, state, _fitting(state, kept, settled), memory.inner)
        queue = _Queue(state)
        granted, drained = queue.grants(np.flatnonzero(decision.devices == 0), kept, share)
        if granted or drained:
            decision = _around(policy, state, _fitting(state, {**kept, **granted}, settled), memory.inner, drained)
        leases = {state.jobs[index].name: leases[state.jobs[index].name] for index in kept}
        leases |= {state.jobs[index].name: state.time_s + float(queue.waited_s[index]) for index in granted}
        reasons = {index: f"{queue.reason(index)}; it keeps these devices as long" for index in granted}
        next_s = min([queue.next_s(decision.devices == 0), *leases.values()])
        backlog = bool(granted) or (memory.backlog and not bool(decision.devices.all()))
        return _remembered(replace(decision, reasons={**decision.reasons, **reasons}), leases, next_s, backlog)

    return _like(decide, policy)


def aged_by_deadlines(policy: Policy) -> Policy:
    """Wrap a policy of admitted deadlines: an overdue job without a deadline gets one, behind those of all admitted jobs.

    The memory of the policy is the names of admitted jobs, which keep their promised shares.
    """

    def decide(state: State) -> Decision:
        memory = _Leases.read(state.memory)
        present = {job.name: index for index, job in enumerate(state.jobs)}
        dates = {name: due_s for name, due_s in memory.leases.items() if name in present}
        queue = _Queue(state)
        free = [index for index, job in enumerate(state.jobs) if math.isinf(job.deadline_s) and not state.devices[index]]
        last_s = max([state.time_s, *dates.values(), *(job.deadline_s for job in state.jobs if job.deadline_s < math.inf)])
        overdue = list(queue.overdue(np.array(free, np.int64)))
        for index in overdue:
            if (name := state.jobs[index].name) not in dates:
                last_s += 2 * (queue.length_s(index) + float(state.restart_s[index]))
                dates[name] = last_s
        jobs = [replace(job, deadline_s=dates[job.name]) if job.name in dates else job for job in state.jobs]
        admitted = tuple(dict.fromkeys([*(memory.inner or ()), *dates]))
        decision = policy(replace(state, jobs=jobs, memory=admitted))
        starts = [index for index in overdue if decision.devices[index]]
        reasons = {index: f"{queue.reason(index)}; it got a deadline behind those of others" for index in starts}
        next_s = queue.next_s(decision.devices == 0)
        return _remembered(replace(decision, reasons={**decision.reasons, **reasons}), dates, next_s)

    return _like(decide, policy)


def _remembered(decision: Decision, leases: Mapping[str, float], next_s: float, backlog: bool = False) -> Decision:
    """Return a decision that holds until ``next_s`` at most, with the memory of the next one."""
    return replace(
        decision,
        wake_s=min(decision.wake_s, next_s),
        holds_until_s=min(decision.holds_until_s, next_s - MARGIN_S),
        memory=_Leases(leases, decision.memory, backlog).to_plain(),
    )


def _like(decide: Policy, policy: Policy) -> Policy:
    """Return a function with the name of the policy."""
    decide.__name__ = getattr(policy, "__name__", "aged")
    return decide


def _kept(state: State, leases: Mapping[str, float]) -> Held:
    """Return the devices of jobs with a lease."""
    if not leases:
        return {}
    holds = np.flatnonzero(state.devices).tolist()
    return {
        index: (int(state.devices[index]), int(state.type_index[index])) for index in holds if state.jobs[index].name in leases
    }


def _is_even(state: State) -> bool:
    """Return whether ended jobs' times on devices vary less than exponential ones, if enough have ended."""
    return state.ended >= FEWEST_ENDED and state.ended_ran_squared * state.ended < 2 * state.ended_ran_s**2


def _settled(state: State) -> Held:
    """Return the devices of running jobs that taking turns would only delay. Jobs that adapt their devices are left out.

    These are jobs of unknown length, if ended jobs vary little, and those of known length that end before each waiting job
    would, on no more devices than it needs. No waiting job would end sooner with these devices.
    """
    held, unknown = dict[int, tuple[int, int]](), _is_even(state)
    shortest: tuple[float, int] | None = None
    for index in np.flatnonzero(state.devices).tolist():
        size, group = int(state.devices[index]), int(state.type_index[index])
        if "devices" in state.jobs[index].adapts:
            continue
        left_s = float(state.outlooks[index].seconds_left(group, size)[size])
        if math.isfinite(left_s):
            shortest = shortest or _shortest_waiting(state)
            if left_s <= shortest[0] and size <= shortest[1]:
                held[index] = size, group
        elif unknown:
            held[index] = size, group
    return held


def _shortest_waiting(state: State) -> tuple[float, int]:
    """Return the shortest length in seconds and the fewest devices of waiting jobs; 0 if the length of one is unknown."""
    least_s, fewest = math.inf, MOST_DEVICES
    for index in np.flatnonzero(state.devices == 0).tolist():
        sizes = _sizes(state, index)
        for group, (size, _) in sizes.items():
            left_s = float(state.outlooks[index].seconds_left(group, size)[size])
            least_s, fewest = min(least_s, left_s if math.isfinite(left_s) else 0.0), min(fewest, size)
    return least_s, fewest


def _fitting(state: State, first: Held, others: Held) -> Held:
    """Return the first jobs with those of the others that fit next to them, the one that ran longest before others."""
    if not others:
        return first
    held, left = dict(first), state.capacity.copy()
    for size, group in first.values():
        left[group] -= size
    ran_s = state.ran_s
    for index in sorted(others, key=lambda index: (state.jobs[index].preemptible, -ran_s[index])):
        size, group = others[index]
        if index not in held and size <= left[group]:
            held[index] = size, group
            left[group] -= size
    return held


class _Queue:
    """Waiting jobs by the time at which they are overdue.

    Attributes:
        waited_s: seconds without devices since each arrival. ``bound_s``: bound of each, before its length is known.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        mean_s = (state.ended_ran_s + float(state.run_s.sum())) / state.ended if state.ended else math.inf
        self._sizes: dict[int, Mapping[int, tuple[int, float]]] = {}
        self.waited_s: Array = state.age_s - state.ran_s
        self.bound_s: Array = np.minimum(PATIENCE * np.maximum(mean_s, state.ran_s), LONGEST_S)

    def grants(self, waiting: Ints, kept: Held, share: float) -> tuple[Held, set[int]]:
        """Return the devices for overdue jobs, the one that is due first before others, and the types where no job may start.

        An overdue job without room blocks later ones on the types that it may use. If jobs that may not be stopped hold its
        devices, no job starts on them until enough are free.
        """
        state = self._state
        used, closed = np.zeros_like(state.capacity), np.zeros(len(state.capacity), bool)
        for devices, group in kept.values():
            used[group] += devices
        most = np.floor(share * state.capacity)
        granted: dict[int, tuple[int, int]] = {}
        drained: set[int] = set()
        for index in self.overdue(waiting):
            sizes = self._sizes[index]
            able = [group for group in sizes if not closed[group]]
            room = [group for group in able if used[group] + sizes[group][0] <= most[group] or not used[group]]
            fits = [group for group in room if sizes[group][0] <= state.capacity[group]]
            if fits:
                group = max(fits, key=lambda group: sizes[group][1])
                granted[index] = sizes[group][0], group
                used[group] += sizes[group][0]
                continue
            closed[list(sizes)] = True
            drained.update(room)
            if closed.all():
                break
        return granted, drained

    def overdue(self, waiting: Ints) -> Iterator[int]:
        """Yield overdue jobs that some type can run, the one that is due first before others."""
        late = waiting[self.waited_s[waiting] >= self.bound_s[waiting] - MARGIN_S]
        for index in late[np.argsort(self.bound_s[late] - self.waited_s[late], kind="stable")].tolist():
            sizes = _sizes(self._state, index)
            if not sizes:
                continue
            self._sizes[index] = sizes
            self.bound_s[index] = max(self.bound_s[index], min(self.length_s(index), LONGEST_S))
            if self.waited_s[index] >= self.bound_s[index] - MARGIN_S:
                yield index

    def length_s(self, index: int) -> float:
        """Return the seconds on devices of an overdue job: past ones, and known remaining ones."""
        outlook = self._state.outlooks[index]
        left_s = min(float(outlook.seconds_left(group, size)[size]) for group, (size, _) in self._sizes[index].items())
        return float(self._state.ran_s[index]) + (left_s if math.isfinite(left_s) else 0.0)

    def next_s(self, waits: Bools) -> float:
        """Return the time at which the next waiting job is overdue; inf if none will be."""
        left_s = (self.bound_s - self.waited_s)[waits & (self.waited_s < self.bound_s - MARGIN_S)]
        return self._state.time_s + float(left_s.min(initial=math.inf))

    def reason(self, index: int) -> str:
        """Explain a grant."""
        waited, bound = (format_seconds(float(seconds[index])) for seconds in (self.waited_s, self.bound_s))
        return f"{OVERDUE}: it had waited {waited}, and its bound was {bound}"


def _sizes(state: State, index: int) -> dict[int, tuple[int, float]]:
    """Return the devices for an overdue job on each type that can run it, with their speed.

    An elastic job gets an equal share of the type, within its limits.
    """
    job, outlook = state.jobs[index], state.outlooks[index]
    asked, sizes = int(state.requested[index]), {}
    for group, there in enumerate((state.capacity + state.withheld).tolist()):
        if not there or not job.may_use(state.fleet.types[group]):
            continue
        if "devices" not in job.adapts:
            legal = [asked] if asked <= there else []
            table = outlook.goodput(group, asked) if legal else np.zeros(1)
        else:
            table = outlook.goodput(group, min(outlook.max_devices(), there))
            runs = np.flatnonzero(table > 0)
            runs = runs[runs >= job.min_devices]
            fair = runs[runs <= max(there // len(state.jobs), 1)]
            legal = [int(fair[-1] if fair.size else runs[0])] if runs.size else []
        if legal and table[legal[0]] > 0:
            sizes[group] = legal[0], float(table[legal[0]])
    return sizes


def _around(policy: Policy, state: State, kept: Held, memory: Any, drained: Collection[int] = ()) -> Decision:
    """Return the decision of a policy on the other jobs and devices, together with the kept ones.

    Args:
        drained: types on which the policy has only the devices that its jobs hold.
    """
    if not kept and not drained:
        return policy(replace(state, memory=memory))
    rows = np.array([index for index in range(len(state.jobs)) if index not in kept], np.int64)
    capacity = state.capacity.copy()
    devices, types = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    for index, (size, group) in kept.items():
        devices[index], types[index] = size, group
        capacity[group] -= size
    for group in drained:
        held = int(state.devices[rows][state.type_index[rows] == group].sum())
        capacity[group] = min(int(capacity[group]), held)
    if not rows.size:
        return Decision(devices=devices, type_index=types, memory=memory)
    part = policy(replace(state.part(rows, capacity), memory=memory))
    devices[rows], types[rows] = part.devices, part.type_index
    place = rows.tolist()
    order = [*kept, *(place[index] for index in (range(len(place)) if part.order is None else part.order))]
    return replace(
        part,
        devices=devices,
        type_index=types,
        order=order,
        placements={place[index]: where for index, where in part.placements.items()},
        reasons={place[index]: why for index, why in part.reasons.items()},
        removed={place[index]: why for index, why in part.removed.items()},
    )
