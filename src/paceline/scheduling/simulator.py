"""The event loop: arrivals, ends, outages and rounds; what a policy decides is carried out, and every second is accounted for.

Deterministic: the same jobs, nodes, policy and seed give the same schedule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.array_types import Array, Bools
from paceline.errors import UserError, shorten
from paceline.scheduling.columns import (
    ARRIVAL,
    ATTAINED,
    COLUMNS,
    DELAY,
    HELD,
    MOST_ROUNDS,
    REQUESTED,
    RESTART,
    RESTARTS,
    SLOWED,
    SPEED,
    TO_NEXT,
    TYPE,
    advance,
    advance_rounds,
    crossings,
)
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job, check_names
from paceline.scheduling.placement import Placement, placed, repacked, shape
from paceline.scheduling.run import Reports, Run, SteadyRun
from paceline.scheduling.schedule import Outcome, Schedule, Settings, Span
from paceline.scheduling.state import Decision, Outlook, Policy, State
from paceline.units import format_seconds

_LATE = 1e-7
MOST_IDLE = 1000
"""Decisions in a row in which no job works, though nothing stands in the way: more, and the policy never gets anywhere."""
SHORTEST_ROUND_S = 0.01


def simulate(
    jobs: Sequence[Job],
    fleet: Fleet,
    policy: Policy,
    runs: Callable[[Job], Run],
    settings: Settings | None = None,
    progress: Callable[[float, int], None] | None = None,
) -> Schedule:
    """Run all jobs to their end.

    Args:
        runs: the truth of each job.
        progress: is told the moment and how many jobs have ended.

    Raises:
        UserError: two jobs of one name; a rigid job that is larger than every type it may use; rounds or starts of no use;
            jobs that the policy never starts though nothing else happens, or moves again and again without any work between.
    """
    check_names(jobs)
    _check_sizes(jobs, fleet)
    _check_times(settings or Settings())
    return _Simulation(jobs, fleet, policy, runs, settings or Settings(), progress).run()


def _check_times(settings: Settings) -> None:
    """Raises UserError for rounds that are no time, and for starts that last longer than jobs may stand still."""
    round_s, restart_s = settings.round_s, max(settings.restart_s, *settings.restart_by_model.values(), 0.0)
    if round_s and not SHORTEST_ROUND_S <= round_s < math.inf:
        fix = f"give at least {SHORTEST_ROUND_S:g}s, or 0 to decide at every arrival, end and outage"
        raise UserError(f"a `round` of {round_s:g} s", fix)
    if round_s and restart_s >= round_s * MOST_IDLE:
        raise UserError(
            f"a `restart` of {format_seconds(restart_s)} takes {MOST_IDLE:,} rounds of {format_seconds(round_s)} or more",
            f"give a shorter `restart`, or a `round` above {format_seconds(restart_s / MOST_IDLE)}",
        )


def _check_sizes(jobs: Sequence[Job], fleet: Fleet) -> None:
    for job in jobs:
        legal = [group.devices for group in fleet.groups if job.may_use(group.device)]
        least = job.min_devices if "devices" in job.adapts else job.devices
        if not legal:
            raise UserError(
                f"job {job.name!r} runs on {', '.join(job.device_types)}", f"the cluster has {', '.join(fleet.types)}"
            )
        if least > max(legal):
            raise UserError(
                f"job {job.name!r} asks for {least:,} devices", f"the cluster has {max(legal):,} of one type that it may use"
            )


class _Simulation:
    """State of the loop: columns of the active jobs, in order of arrival."""

    def __init__(
        self,
        jobs: Sequence[Job],
        fleet: Fleet,
        policy: Policy,
        runs: Callable[[Job], Run],
        settings: Settings,
        progress: Callable[[float, int], None] | None,
    ) -> None:
        self.fleet, self.policy, self.make_run, self.settings, self.progress = fleet, policy, runs, settings, progress
        self.outcomes = {job.name: Outcome(job) for job in jobs}
        self.waiting = sorted(jobs, key=lambda job: job.arrival_s)
        self.next_arrival = 0
        self.time_s = 0.0
        self.free = fleet.node_devices.copy()
        self.up = np.ones(len(self.free), bool)
        self.memory: object = None
        self.decision_s: list[float] = []
        self.active: list[tuple[float, int]] = []
        self.notes: list[tuple[float, str]] = []
        self.wake_s, self.holds_until_s = math.inf, -math.inf
        self.jobs: list[Job] = []
        self.runs: list[Run] = []
        self.placements: list[Placement] = []
        self.columns = np.zeros((len(COLUMNS) + len(fleet.groups), 0))
        self.ended = 0
        self.reports = False
        self.idle = 0

    def run(self) -> Schedule:
        round_s = self.settings.round_s
        if self.waiting:
            self.time_s = self._round_at(self.waiting[0].arrival_s) if round_s else self.waiting[0].arrival_s
        while (self.jobs or self.next_arrival < len(self.waiting)) and self.time_s <= self.settings.longest_s:
            self._arrive()
            self._decide()
            if self.progress:
                self.progress(self.time_s, self.ended)
            if not self.jobs and self.next_arrival == len(self.waiting):
                break  # the last were removed
            if round_s:
                idle = not self.jobs and self.next_arrival < len(self.waiting)
                if not idle:
                    self._pass_rounds()
                until = self._arrival() if idle else self.time_s + round_s
                self._run_rounds(self._round_at(until))
            else:
                self._run_until(self._next_event())
        return Schedule(
            fleet=self.fleet,
            outcomes=tuple(self.outcomes.values()),
            decision_s=tuple(self.decision_s),
            active=tuple(self.active),
            notes=tuple(self.notes),
        )

    def _pass_rounds(self) -> None:
        """On to the last round in which the policy says to decide the same again, and nothing happens before."""
        round_s, c = self.settings.round_s, self.columns
        if self.holds_until_s <= self.time_s or c[DELAY].any() or not all(isinstance(run, SteadyRun) for run in self.runs):
            return
        arrival, change = self._arrival(), self.fleet.next_change(self.time_s)
        works = (c[HELD] > 0).any() and (c[SPEED][c[HELD] > 0] > 0).all()
        waits = not c[HELD].any() and min(arrival, change) < math.inf
        if not (works or waits):
            return
        until = min(arrival, change, self.holds_until_s, self._next_crossing()[0] - round_s, self.settings.longest_s)
        first, last = round(self.time_s / round_s), math.ceil(min(until / round_s, MOST_ROUNDS)) - 1
        if last <= first or first * round_s != self.time_s:
            return
        moments: Array = np.arange(first, last + 1, dtype=np.float64) * round_s
        advance_rounds(c, moments)
        self.active += [(moment, len(self.jobs)) for moment in moments[1:].tolist()]
        self.time_s, self.idle = float(moments[-1]), 0

    def _arrival(self) -> float:
        """When the next job comes; infinite: none."""
        return self.waiting[self.next_arrival].arrival_s if self.next_arrival < len(self.waiting) else math.inf

    def _run_rounds(self, moment: float) -> None:
        """Up to a boundary; a node that goes on the way takes its jobs with it at once."""
        while (change := self.fleet.next_change(self.time_s)) < moment:
            self._run_until(change)
            self._outages()
        self._run_until(moment)

    def _round_at(self, moment: float) -> float:
        """The first boundary of a round from ``moment`` on."""
        return math.ceil(moment / self.settings.round_s - 1e-9) * self.settings.round_s

    def _arrive(self) -> None:
        first = self.next_arrival
        while self.next_arrival < len(self.waiting) and self.waiting[self.next_arrival].arrival_s <= self.time_s:
            self.next_arrival += 1
        arrived = self.waiting[first : self.next_arrival]
        if not arrived:
            return
        fresh = np.zeros((len(self.columns), len(arrived)))
        for index, job in enumerate(arrived):
            run = self.make_run(job)
            self.reports = self.reports or isinstance(run, Reports)
            self.jobs.append(job)
            self.runs.append(run)
            self.placements.append(())
            fresh[ARRIVAL, index], fresh[REQUESTED, index] = job.arrival_s, job.devices
            fresh[TYPE, index], fresh[TO_NEXT, index] = -1, run.to_next
            fresh[RESTART, index] = self.settings.restart_by_model.get(job.model, self.settings.restart_s)
        self.columns = np.concatenate([self.columns, fresh], axis=1)

    def _next_event(self) -> float:
        """Without rounds: the next arrival, outage or wish of the policy, or the next moment at which a job changes."""
        moment = min(self._arrival(), self.wake_s, self.fleet.next_change(self.time_s), self._next_crossing()[0])
        if moment == math.inf:
            raise self._never_starts()
        return moment

    def _never_starts(self) -> UserError:
        return UserError(f"the policy never starts {self._named()}", "give it nodes that hold its jobs, or another policy")

    def _keeps_moving(self) -> UserError:
        what = f"the policy decided {MOST_IDLE:,} times in a row without any work between, on {self._named()}"
        return UserError(what, "give a shorter `restart`, a longer `round`, or another policy")

    def _named(self) -> str:
        names = ", ".join(shorten(job.name, 40) for job in self.jobs[:3])
        return f"{len(self.jobs)} jobs ({names}{', ...' * (len(self.jobs) > 3)})" if len(self.jobs) > 1 else f"job {names}"

    def _check_idle(self) -> None:
        """Every decision since a job last worked counts, unless all wait for an arrival or a repair."""
        held = bool(self.columns[HELD].any())
        to_come = self.next_arrival < len(self.waiting) or self.fleet.next_change(self.time_s) < math.inf
        self.idle = self.idle + 1 if held or not to_come else 0
        if self.idle > MOST_IDLE:
            raise self._keeps_moving() if held else self._never_starts()

    def _next_crossing(self) -> tuple[float, Array]:
        """When the next running job changes, and when each does."""
        moments = crossings(self.columns, self.time_s)
        return (float(moments.min()), moments) if len(moments) else (math.inf, moments)

    def _run_until(self, moment: float) -> None:
        """Let time pass, with every change of a job on the way."""
        while True:
            crossing, moments = self._next_crossing()
            if crossing > moment:
                self._advance(moment - self.time_s)
                self.time_s = moment
                return
            self._advance(crossing - self.time_s)
            self.time_s = crossing
            for index in np.flatnonzero(moments <= crossing + _LATE)[::-1]:
                self._cross(int(index))
            if not self.settings.round_s:  # an end is an event
                self.time_s = crossing
                if crossing == moment:
                    return

    def _advance(self, seconds: float) -> None:
        if seconds > 0 and self.jobs and advance(self.columns, seconds):
            self.idle = 0

    def _cross(self, index: int) -> None:
        run = self.runs[index]
        run.goes_to(0.0)
        run.cross()
        if run.finished:
            self._leave(index)
        else:
            self.columns[SPEED, index] = run.speed * (1 - self.columns[SLOWED, index])
            self.columns[TO_NEXT, index] = run.to_next

    def _remove(self, index: int, reason: str) -> None:
        """It leaves before its end."""
        outcome = self.outcomes[self.jobs[index].name]
        self._leave(index)
        outcome.end_s, outcome.removed, outcome.removed_s = math.nan, reason, self.time_s

    def _leave(self, index: int) -> None:
        job = self.jobs[index]
        outcome = self.outcomes[job.name]
        outcome.end_s = self.time_s
        self._release(index)
        outcome.restarts = int(self.columns[RESTARTS, index])
        del self.jobs[index], self.runs[index], self.placements[index]
        self.columns = np.delete(self.columns, index, axis=1)
        self.ended += 1
        if self.settings.interference:
            self._slow_down()

    def _release(self, index: int) -> None:
        """A job's devices are free again, and its stretch on them ends."""
        for node, count in self.placements[index]:
            self.free[node] += count
        if self.placements[index]:
            self.outcomes[self.jobs[index].name].spans[-1].end_s = self.time_s
        self.placements[index] = ()
        self.columns[HELD, index] = 0

    def _stop(self, index: int) -> None:
        """It waits."""
        self._release(index)
        self.runs[index].place("", ())
        self.columns[SPEED, index], self.columns[TYPE, index] = 0.0, -1

    def _decide(self) -> None:
        self._outages()
        self.wake_s, self.holds_until_s = math.inf, -math.inf
        if not self.jobs:
            return
        for index in np.flatnonzero(self.columns[HELD]):
            run = self.runs[index]
            run.goes_to(float(self.columns[TO_NEXT, index]))
            run.refresh()
            self.columns[SPEED, index] = run.speed * (1 - self.columns[SLOWED, index])
        state = self._state()
        started = time.perf_counter()
        decision = self.policy(state)
        self.decision_s.append(time.perf_counter() - started)
        self.active.append((self.time_s, len(self.jobs)))
        self.memory, self.wake_s, self.holds_until_s = decision.memory, decision.wake_s, decision.holds_until_s
        if decision.note:
            self.notes.append((self.time_s, decision.note))
        self._check_idle()
        self._carry_out(decision)
        if decision.removed:  # what it promised was with them
            self.holds_until_s = -math.inf
        for gone in sorted(decision.removed, reverse=True):
            self._remove(gone, decision.removed[gone])

    def _state(self) -> State:
        c = self.columns
        there = np.where(self.up, self.fleet.node_devices, 0)
        return State(
            time_s=self.time_s,
            round_s=self.settings.round_s,
            fleet=self.fleet,
            capacity=np.bincount(self.fleet.node_types, there, len(self.fleet.groups)).astype(np.int64),
            jobs=self.jobs,
            arrival_s=c[ARRIVAL],
            requested=c[REQUESTED].astype(np.int64),
            devices=c[HELD].astype(np.int64),
            type_index=c[TYPE].astype(np.int64),
            attained_s=c[ATTAINED],
            run_s=c[len(COLUMNS) :].T,
            restarts=np.maximum(c[RESTARTS], 0).astype(np.int64),
            outlooks=_Outlooks(self.runs),
            restart_s=self._told_restart_s(),
            restarting_s=c[DELAY],
            memory=self.memory,
            curves=[run.curve() if isinstance(run, Reports) else _NO_CURVE for run in self.runs] if self.reports else (),
        )

    def _told_restart_s(self) -> Array:
        told, true = self.settings.believed_restart, self.columns[RESTART]
        return np.array([told.get(job.model, cost) for job, cost in zip(self.jobs, true, strict=True)]) if told else true

    def _carry_out(self, decision: Decision) -> None:
        """Free what is taken away, then place what is new, in the policy's order."""
        held, types = self.columns[HELD], self.columns[TYPE]
        changed = (decision.devices != held) | ((decision.type_index != types) & (decision.devices > 0))
        if changed.any():
            self._move(decision, changed)
        if self.settings.interference:
            self._slow_down()

    def _move(self, decision: Decision, changed: Bools) -> None:
        placements = self._repacked(decision, changed) if decision.repack else {}
        for index in np.flatnonzero(changed & (self.columns[HELD] > 0)).tolist():
            self._stop(index)
        for index in np.flatnonzero(changed).tolist() if decision.order is None else decision.order:
            if changed[index] and decision.devices[index]:
                self._start(int(index), decision, placements.get(int(index)))

    def _repacked(self, decision: Decision, changed: Bools) -> dict[int, Placement]:
        """Where each job goes when all are placed anew; those that keep their size but not their nodes move now, or count as
        changed where a move costs a restart."""
        placements: dict[int, Placement] = {}
        for group in range(len(self.fleet.groups)):
            nodes = self.fleet.nodes_of(group)
            indices = np.flatnonzero((decision.devices > 0) & (decision.type_index == group)).tolist()
            here = [self.placements[index] if self.columns[TYPE, index] == group else () for index in indices]
            before = [tuple((node - nodes.start, count) for node, count in placement) for placement in here]
            sizes = np.where(self.up[nodes], self.fleet.node_devices[nodes], 0)
            after = repacked(sizes, before, decision.devices[indices], self.fleet.groups[group].leaf_nodes)
            for index, placement in zip(indices, after, strict=True):
                placements[index] = tuple((node + nodes.start, count) for node, count in placement)
        moved = [index for index, to in placements.items() if not changed[index] and to != self.placements[index]]
        free = self.settings.moves_free
        going = {index for index in moved if free and self._alike(placements[index], self.placements[index])}
        for index in going:
            self._release(index)
        for index in moved:
            if index in going:
                self._hold(index, placements[index])
            else:
                changed[index] = True
        return placements

    def _alike(self, one: Placement, other: Placement) -> bool:
        """Whether a job is as fast on both."""
        return shape(one) == shape(other) and self.fleet.crossed(one) == self.fleet.crossed(other)

    def _hold(self, index: int, placement: Placement, reason: str = "") -> None:
        """It has these devices from now on."""
        for node, count in placement:
            self.free[node] -= count
        self.placements[index] = placement
        self.columns[HELD, index] = sum(shape(placement))
        device, run = self.fleet.groups[self.fleet.node_types[placement[0][0]]].device, self.runs[index]
        span = Span(self.time_s, self.time_s, device, placement, run.batch, reason, run.strategy)
        self.outcomes[self.jobs[index].name].spans.append(span)

    def _start(self, index: int, decision: Decision, placement: Placement | None) -> None:
        group, devices = int(decision.type_index[index]), int(decision.devices[index])
        nodes = self.fleet.nodes_of(group)
        if placement is None:
            free = np.where(self.up[nodes], self.free[nodes], 0)
            placement = placed(decision.rule, free, devices, self.fleet.groups[group].leaf_nodes)
            placement = tuple((node + nodes.start, count) for node, count in placement)
        if not placement:
            raise RuntimeError(f"{self.jobs[index].name}: the policy gave {devices} devices that are not free")
        run, c = self.runs[index], self.columns
        run.goes_to(float(c[TO_NEXT, index]))
        run.place(self.fleet.groups[group].device, shape(placement), self.fleet.crossed(placement))
        c[TYPE, index], c[SPEED, index], c[DELAY, index] = group, run.speed, c[RESTART, index]
        c[RESTARTS, index] = c[RESTARTS, index] + 1 if self.outcomes[self.jobs[index].name].spans else 0
        self._hold(index, placement, decision.reasons.get(index, ""))

    def _slow_down(self) -> None:
        """Jobs on several nodes slow one another down where they share one (Pollux, OSDI 2021, section 4.2.1)."""
        users = np.zeros(len(self.free), np.int64)
        for placement in self.placements:
            if len(placement) > 1:
                users[[node for node, _ in placement]] += 1
        for index, placement in enumerate(self.placements):
            shares = len(placement) > 1 and any(users[node] > 1 for node, _ in placement)
            self.columns[SLOWED, index] = self.settings.interference if shares else 0.0
            self.columns[SPEED, index] = self.runs[index].speed * (1 - self.columns[SLOWED, index])

    def _outages(self) -> None:
        """Nodes that went or came: jobs on one that went stop; after a failure the work since the last checkpoint is lost."""
        if not self.fleet.outages:
            return
        up = self.fleet.up(self.time_s)
        gone = np.flatnonzero(self.up & ~up)
        self.up = up
        failed = {
            outage.node for outage in self.fleet.outages if outage.start_s <= self.time_s < outage.end_s and not outage.planned
        }
        for index, placement in enumerate(self.placements):
            nodes = {node for node, _ in placement}
            if nodes & set(gone.tolist()):
                if nodes & failed:
                    span = self.outcomes[self.jobs[index].name].spans[-1]
                    worked = max(self.time_s - span.start_s - float(self.columns[RESTART, index]), 0.0)
                    self.columns[TO_NEXT, index] += (worked % self.settings.checkpoint_s) * self.columns[SPEED, index]
                self._stop(index)


class _Outlooks(Sequence[Outlook]):
    """Outlooks of runs, made when asked for: many policies ask for none."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Outlook:  # type: ignore[override]
        return self._runs[index].outlook


_NO_CURVE = np.zeros(0)


__all__ = ["simulate"]
