"""Rounds of time shares (Gavel, OSDI 2020, section 5), which serve the job furthest behind its share first. Jobs are rigid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.errors import UserError, shorten
from paceline.scheduling.policies.solvers.share_programs import ShareLimits
from paceline.scheduling.speeds.goodput_tables import goodput_on, shared_outlook
from paceline.scheduling.state import Decision, Outlook, State


@dataclass(frozen=True)
class ShareDemand:
    """Input of a program of shares: the jobs that some type can run now.

    Attributes:
        state: state of the cluster. ``rows``: indices of these jobs in it; shape (jobs,).
        speed: progress a second on the devices asked for; 0: it cannot run; shape (jobs, types).
        past: value that ``Shares`` returned last; None at first.
    """

    state: State
    rows: Ints
    speed: Array
    past: Any = None

    @classmethod
    def of(cls, state: State, past: Any = None) -> ShareDemand:
        """Return the demand of the state's jobs that some type can run."""
        speed = speeds(state)
        rows = np.flatnonzero(speed.max(axis=1, initial=0.0) > 0)
        return cls(state, rows, speed[rows], past)

    @cached_property
    def limits(self) -> ShareLimits:
        """Return the constraints of the shares."""
        return ShareLimits(self.devices, self.state.capacity, self.speed > 0)

    @property
    def names(self) -> list[str]:
        """Names of the jobs."""
        return [self.state.jobs[row].name for row in self.rows]

    @property
    def devices(self) -> Ints:
        """Devices asked for."""
        return self.state.requested[self.rows]

    @property
    def age_s(self) -> Array:
        """Seconds since each arrival."""
        return self.state.age_s[self.rows]

    @cached_property
    def weight(self) -> Array:
        """Weight of each job."""
        return np.array([self.state.jobs[row].weight for row in self.rows])

    @cached_property
    def mean_speed(self) -> Array:
        """Speed on an equal share of the cluster: the mean over its devices; shape (jobs,)."""
        return np.asarray(self.speed @ self.state.capacity / self.state.capacity.sum())

    @cached_property
    def left(self) -> Array:
        """Remaining progress; shape (jobs,).

        Raises:
            UserError: unknown remaining work of a job.
        """
        left = np.zeros(len(self.rows))
        fastest = self.speed.argmax(axis=1)
        top = self.speed[np.arange(len(left)), fastest]
        columns = (part.tolist() for part in (self.rows, fastest, top, self.devices))
        for index, (row, kind, rate, asked) in enumerate(zip(*columns, strict=True)):
            outlook = self.state.outlooks[row]
            if (shared := shared_outlook(outlook)) is not None:
                left[index] = shared.progress_left() / rate * rate
            else:
                left[index] = outlook.seconds_left(kind, asked)[asked] * rate
            if np.isnan(left[index]):
                name = shorten(self.state.jobs[row].name, 40)
                raise UserError(
                    f"the remaining work of job {name!r} is unknown",
                    "simulate with `knowledge` measured, or use max_min or las, which do not need it",
                )
        return left

    def agnostic(self) -> ShareDemand:
        """Return the demand with every type as fast as the first that can run the job."""
        legal = self.speed > 0
        first = np.take_along_axis(self.speed, legal.argmax(axis=1)[:, None], axis=1)
        return replace(self, speed=np.where(legal, first, 0.0))


def speeds(state: State) -> Array:
    """Return the progress a second of each job on the requested devices; 0 if it may not or cannot run; shape (jobs, types)."""
    table, fixed = np.zeros((len(state.jobs), len(state.capacity))), state.fixed
    known = np.zeros(len(table), bool) if fixed is None else ~np.isnan(fixed.rate).any(axis=1)
    if fixed is not None:
        table[known] = np.where(state.requested[:, None] <= state.capacity, fixed.rate, 0.0)[known]
    rows, kinds, outlooks, sizes = list[int](), list[int](), list[Outlook](), list[Ints]()
    capacity = list(zip(state.capacity.tolist(), state.fleet.types, strict=True))
    for index in np.flatnonzero(~known).tolist():
        job, outlook, asked = state.jobs[index], state.outlooks[index], int(state.requested[index])
        size = None if shared_outlook(outlook) is None else np.array([asked])
        for kind, (there, name) in enumerate(capacity):
            if asked > there or (job.device_types and not job.may_use(name)):
                continue
            if size is None:
                table[index, kind] = outlook.goodput(kind, asked)[asked]
            else:
                rows.append(index)
                kinds.append(kind)
                outlooks.append(outlook)
                sizes.append(size)
    table[rows, kinds] = goodput_on(outlooks, kinds, sizes)
    return table


Shares = Callable[[ShareDemand], tuple[Array, Any]]
"""Function that returns shares of shape (jobs, types), and the ``past`` of the next ``ShareDemand``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """Rules that turn shares into rounds.

    Attributes:
        renew_s: least time between renewals of the shares after changes of jobs, devices or speeds; 0: renew each time. Jobs
            that arrived later have no share and run on the remaining devices.
        start_s: initial time of each job on each type, above 0.
        forgets: True if received time counts from the last renewal on, else from the start.
        by_type: True if types are filled one after another in the fleet's order, else one queue holds jobs and types.
        shuffled: True if that order is drawn in each round.
        fills: True if unclaimed devices go to any job that can use them.
        late_hold: True if jobs without a share hold idle devices until the next renewal, as in Gavel's simulator.
        round_s: least time for which jobs keep their devices; 0: until the next decision of the cluster. A round is never
            shorter than the time in which a start costs ``RESTART_PART``.
    """

    renew_s: float = 0.0
    start_s: float = 180.0
    forgets: bool = True
    by_type: bool = False
    shuffled: bool = False
    fills: bool = True
    late_hold: bool = False
    round_s: float = 0.0


RESTART_PART = 0.05
"""Largest part of a round that a start may take. In Gavel's rounds of 6 min preemption costs less than 3 % (section 7.3)."""
PUBLISHED = RoundRules(renew_s=1920.0, by_type=True, late_hold=True)
"""Rules of Gavel's simulator (scheduler.py of the authors' repository)."""
USUAL = RoundRules(renew_s=PUBLISHED.renew_s, round_s=360.0)
"""Rules of Gavel's simulator with its rounds, but jobs that arrived since the last renewal run at once on remaining devices,
and the fleet's order has no effect.

A renewal at every arrival resets the priorities: a job that waits for many devices can then wait for ever.
"""


ROUNDING_S = 1e-6


@dataclass(frozen=True)
class _Memory:
    """Memory of a policy between rounds. Its rows follow the names in ``index``."""

    index: Mapping[str, int]
    shares: Array
    received: Array
    owed: Array
    worked: Array
    renewed_s: float
    time_s: float
    capacity: Ints
    speed: Array
    held: Ints
    past: Any = None
    round_s: float = -np.inf
    """Start of the round."""


def time_shared(state: State, shares: Shares, sharing: RoundRules = USUAL) -> Decision:
    """Renew the shares if something changed, then serve jobs by share over received time."""
    memory: _Memory | None = state.memory
    names = [job.name for job in state.jobs]
    run_s, types = np.asarray(state.run_s, float), len(state.capacity)
    if memory is None:
        empty = np.zeros((0, types))
        none = np.zeros(types, np.int64)
        memory = _Memory({}, empty, empty, empty, np.zeros(types), -np.inf, state.time_s, state.capacity, empty, none)
    rows = np.array([memory.index.get(name, -1) for name in names], np.int64)
    old: Bools = np.asarray(rows >= 0)
    worked = memory.worked + memory.held * (state.time_s - memory.time_s)
    has = np.where(old[:, None], _take(memory.shares, rows, np.nan), np.nan)
    base = np.where(old[:, None], _take(memory.received, rows, 0.0), -sharing.start_s)
    owed = np.where(old[:, None], _take(memory.owed, rows, 0.0), 0.0)
    if not sharing.forgets:
        worked = worked + (~old).sum() * sharing.start_s
    renewed_s, past, speed, capacity = memory.renewed_s, memory.past, memory.speed, memory.capacity
    if state.time_s - renewed_s >= sharing.renew_s:
        demand = ShareDemand.of(state, past)
        now = np.zeros_like(has)
        now[demand.rows] = demand.speed
        changed = not old.all() or len(rows) != len(memory.index) or np.isnan(has).any()
        if changed or not np.array_equal(now, speed) or not np.array_equal(capacity, state.capacity):
            if sharing.forgets:
                since = state.time_s - renewed_s if np.isfinite(renewed_s) else 0.0
                owed = owed + np.nan_to_num(has) * since - (run_s - np.maximum(base + sharing.start_s, 0.0))
                base, worked = run_s - sharing.start_s, np.full(types, len(names) * sharing.start_s)
            has = np.zeros_like(has)
            found, past = shares(demand)
            has[demand.rows] = np.where(demand.speed > 0, found, 0.0)
            renewed_s, speed, capacity = state.time_s, now, state.capacity
    else:
        now = speeds(state)
    with np.errstate(divide="ignore", invalid="ignore"):
        priority = np.where(has > 0, has * worked / (run_s - base), 0.0)
    length_s = max(sharing.round_s, float(state.restart_s.max(initial=0.0)) / RESTART_PART) if sharing.round_s else 0.0
    starts = state.time_s - memory.round_s >= length_s - ROUNDING_S
    kept = np.zeros(len(names), bool) if starts else state.devices > 0
    devices, kinds = _served(state, priority, owed, has, now, sharing, kept)
    round_s = state.time_s if starts else memory.round_s
    held = np.bincount(kinds[devices > 0], minlength=types)
    memory = _Memory(
        {name: index for index, name in enumerate(names)},
        has, base, owed, worked, renewed_s, state.time_s, capacity, speed, held, past, round_s,
    )  # fmt: skip
    order = np.argsort(-devices, kind="stable").tolist()
    wake_s = round_s + length_s if length_s and (devices == 0).any() else np.inf
    return Decision(devices=devices, type_index=kinds, order=order, wake_s=wake_s, memory=memory)


def _take(table: Array, rows: Ints, empty: float) -> Array:
    return table[rows] if len(table) else np.full((len(rows), table.shape[1]), empty)


def _served(
    state: State, priority: Array, owed: Array, shares: Array, speed: Array, sharing: RoundRules, kept: Bools
) -> tuple[Ints, Ints]:
    """Return devices and type of each job: by priority, then by owed time. Jobs in ``kept`` keep what they hold."""
    jobs = len(priority)
    late: Bools = np.asarray(np.isnan(shares).any(axis=1))
    legal: Bools = speed > 0
    if not sharing.fills:
        legal = legal & ((priority > 0) | late[:, None])
    left = state.capacity.tolist()
    devices, kinds = np.zeros(jobs, np.int64), np.full(jobs, -1)
    taken = np.zeros(jobs, bool)
    asked = state.requested.tolist()
    for job in np.flatnonzero(kept).tolist():
        kind = int(state.type_index[job])
        if left[kind] >= state.devices[job]:
            devices[job], kinds[job], taken[job] = state.devices[job], kind, True
            left[kind] -= int(state.devices[job])
    for job, kind in _queue(state, priority, owed, np.nan_to_num(shares), legal, sharing):
        if taken[job] or asked[job] > left[kind]:
            continue
        taken[job] = True
        left[kind] -= asked[job]
        if not (sharing.late_hold and late[job]):
            devices[job], kinds[job] = asked[job], kind
        if not any(left):
            break
    return devices, kinds


def _queue(
    state: State, priority: Array, owed: Array, shares: Array, legal: Bools, sharing: RoundRules
) -> Sequence[tuple[int, int]]:
    """Return (job, type) in the order of service, with ties in order of arrival."""
    types = priority.shape[1]
    if not sharing.by_type:
        kinds, jobs = np.nonzero(legal.T)
        order = np.lexsort((-shares[jobs, kinds], -owed[jobs, kinds], -priority[jobs, kinds]))
        return list(zip(jobs[order].tolist(), kinds[order].tolist(), strict=True))
    turn: Sequence[int] = range(types)
    if sharing.shuffled:
        turn = np.random.default_rng(int(state.time_s)).permutation(types).tolist()
    queue: list[tuple[int, int]] = []
    for kind in turn:
        able = np.flatnonzero(legal[:, kind])
        order = np.lexsort((-shares[able, kind], -owed[able, kind], -priority[able, kind]))
        queue += [(job, kind) for job in able[order].tolist()]
    return queue
