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
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job, check_names
from paceline.scheduling.placement import Placement, placed, repacked, shape
from paceline.scheduling.run import Reports, Run
from paceline.scheduling.schedule import Outcome, Schedule, Settings, Span
from paceline.scheduling.state import Decision, Outlook, Policy, State

_LATE = 1e-7
MOST_IDLE = 1000
"""Decisions in a row after which no job has worked, though nothing stands in the way: the policy moves jobs for ever."""


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
        UserError: two jobs of one name; a rigid job that is larger than every type it may use; jobs that the policy never
            starts though nothing else happens, or that it moves for ever.
    """
    check_names(jobs)
    _check_sizes(jobs, fleet)
    return _Simulation(jobs, fleet, policy, runs, settings or Settings(), progress).run()


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
        self.wake_s = math.inf
        self.jobs: list[Job] = []
        self.runs: list[Run] = []
        self.placements: list[Placement] = []
        self.columns = np.zeros((len(_COLUMNS) + len(fleet.groups), 0))
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
                until = self.waiting[self.next_arrival].arrival_s if idle else self.time_s + round_s
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
            fresh[_ARRIVAL, index], fresh[_REQUESTED, index] = job.arrival_s, job.devices
            fresh[_TYPE, index], fresh[_TO_NEXT, index] = -1, run.to_next
            fresh[_RESTART, index] = self.settings.restart_by_model.get(job.model, self.settings.restart_s)
        self.columns = np.concatenate([self.columns, fresh], axis=1)

    def _next_event(self) -> float:
        """Without rounds: the next arrival, outage or wish of the policy, or the next moment at which a job changes."""
        arrival = self.waiting[self.next_arrival].arrival_s if self.next_arrival < len(self.waiting) else math.inf
        moment = min(arrival, self.wake_s, self.fleet.next_change(self.time_s), self._next_crossing()[0])
        if moment == math.inf:
            raise self._stuck("never starts")
        return moment

    def _stuck(self, what: str) -> UserError:
        names = ", ".join(shorten(job.name, 40) for job in self.jobs[:3])
        many = f"{len(self.jobs)} jobs" if len(self.jobs) > 1 else "a job"
        return UserError(f"the policy {what} {many} ({names})", "give it nodes that hold its jobs, or another policy")

    def _check_idle(self) -> None:
        """Every decision since a job last worked counts, unless all wait for an arrival or a repair."""
        held = bool(self.columns[_HELD].any())
        to_come = self.next_arrival < len(self.waiting) or self.fleet.next_change(self.time_s) < math.inf
        self.idle = self.idle + 1 if held or not to_come else 0
        if self.idle > MOST_IDLE:
            raise self._stuck("moves for ever" if held else "never starts")

    def _next_crossing(self) -> tuple[float, Array]:
        """When the next running job changes, and when each does."""
        speed, delay, left = self.columns[_SPEED], self.columns[_DELAY], self.columns[_TO_NEXT]
        if not speed.size:
            return math.inf, speed
        with np.errstate(divide="ignore", invalid="ignore"):
            moments = np.where(speed > 0, self.time_s + delay + left / speed, math.inf)
        return float(moments.min()), moments

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
        if seconds <= 0 or not self.jobs:
            return
        c = self.columns
        held = c[_HELD]
        c[_ATTAINED] += held * seconds
        for group in range(len(self.fleet.groups)):
            c[len(_COLUMNS) + group] += (c[_TYPE] == group) * seconds
        worked = np.maximum(seconds - c[_DELAY], 0.0)
        if (worked * c[_SPEED]).any():
            self.idle = 0
        c[_DELAY] = np.maximum(c[_DELAY] - seconds, 0.0)
        c[_TO_NEXT] -= c[_SPEED] * worked

    def _cross(self, index: int) -> None:
        run = self.runs[index]
        run.goes_to(0.0)
        run.cross()
        if run.finished:
            self._leave(index)
        else:
            self.columns[_SPEED, index] = run.speed * (1 - self.columns[_SLOWED, index])
            self.columns[_TO_NEXT, index] = run.to_next

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
        outcome.restarts = int(self.columns[_RESTARTS, index])
        del self.jobs[index], self.runs[index], self.placements[index]
        self.columns = np.delete(self.columns, index, axis=1)
        self.ended += 1

    def _release(self, index: int) -> None:
        """A job's devices are free again, and its stretch on them ends."""
        for node, count in self.placements[index]:
            self.free[node] += count
        if self.placements[index]:
            self.outcomes[self.jobs[index].name].spans[-1].end_s = self.time_s
        self.placements[index] = ()
        self.columns[_HELD, index] = 0

    def _stop(self, index: int) -> None:
        """It waits."""
        self._release(index)
        self.runs[index].place("", ())
        self.columns[_SPEED, index], self.columns[_TYPE, index] = 0.0, -1

    def _decide(self) -> None:
        self._outages()
        self.wake_s = math.inf
        if not self.jobs:
            return
        for index in np.flatnonzero(self.columns[_HELD]):
            run = self.runs[index]
            run.goes_to(float(self.columns[_TO_NEXT, index]))
            run.refresh()
            self.columns[_SPEED, index] = run.speed * (1 - self.columns[_SLOWED, index])
        state = self._state()
        started = time.perf_counter()
        decision = self.policy(state)
        self.decision_s.append(time.perf_counter() - started)
        self.active.append((self.time_s, len(self.jobs)))
        self.memory, self.wake_s = decision.memory, decision.wake_s
        if decision.note:
            self.notes.append((self.time_s, decision.note))
        self._check_idle()
        self._carry_out(decision)
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
            arrival_s=c[_ARRIVAL],
            requested=c[_REQUESTED].astype(np.int64),
            devices=c[_HELD].astype(np.int64),
            type_index=c[_TYPE].astype(np.int64),
            attained_s=c[_ATTAINED],
            run_s=c[len(_COLUMNS) :].T,
            restarts=np.maximum(c[_RESTARTS], 0).astype(np.int64),
            outlooks=_Outlooks(self.runs),
            restart_s=self._told_restart_s(),
            restarting_s=c[_DELAY],
            memory=self.memory,
            curves=[run.curve() if isinstance(run, Reports) else _NO_CURVE for run in self.runs] if self.reports else (),
        )

    def _told_restart_s(self) -> Array:
        told, true = self.settings.believed_restart, self.columns[_RESTART]
        return np.array([told.get(job.model, cost) for job, cost in zip(self.jobs, true, strict=True)]) if told else true

    def _carry_out(self, decision: Decision) -> None:
        """Free what is taken away, then place what is new, in the policy's order."""
        held, types = self.columns[_HELD], self.columns[_TYPE]
        changed = (decision.devices != held) | ((decision.type_index != types) & (decision.devices > 0))
        if not changed.any():
            return
        placements = self._repacked(decision, changed) if decision.repack else {}
        for index in np.flatnonzero(changed & (held > 0)).tolist():
            self._stop(index)
        for index in np.flatnonzero(changed).tolist() if decision.order is None else decision.order:
            if changed[index] and decision.devices[index]:
                self._start(int(index), decision, placements.get(int(index)))
        if self.settings.interference:
            self._slow_down()

    def _repacked(self, decision: Decision, changed: Bools) -> dict[int, Placement]:
        """Where each job goes when all are placed anew; those that keep their size but not their nodes move now, or count as
        changed where a move costs a restart."""
        placements: dict[int, Placement] = {}
        for group in range(len(self.fleet.groups)):
            nodes = self.fleet.nodes_of(group)
            indices = np.flatnonzero((decision.devices > 0) & (decision.type_index == group)).tolist()
            here = [self.placements[index] if self.columns[_TYPE, index] == group else () for index in indices]
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
        self.columns[_HELD, index] = sum(shape(placement))
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
        run.goes_to(float(c[_TO_NEXT, index]))
        run.place(self.fleet.groups[group].device, shape(placement), self.fleet.crossed(placement))
        c[_TYPE, index], c[_SPEED, index], c[_DELAY, index] = group, run.speed, c[_RESTART, index]
        c[_RESTARTS, index] = c[_RESTARTS, index] + 1 if self.outcomes[self.jobs[index].name].spans else 0
        self._hold(index, placement, decision.reasons.get(index, ""))

    def _slow_down(self) -> None:
        """Jobs on several nodes slow one another down where they share one (Pollux, OSDI 2021, section 4.2.1)."""
        users = np.zeros(len(self.free), np.int64)
        for placement in self.placements:
            if len(placement) > 1:
                users[[node for node, _ in placement]] += 1
        for index, placement in enumerate(self.placements):
            shares = len(placement) > 1 and any(users[node] > 1 for node, _ in placement)
            self.columns[_SLOWED, index] = self.settings.interference if shares else 0.0
            self.columns[_SPEED, index] = self.runs[index].speed * (1 - self.columns[_SLOWED, index])

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
                    worked = max(self.time_s - span.start_s - float(self.columns[_RESTART, index]), 0.0)
                    self.columns[_TO_NEXT, index] += (worked % self.settings.checkpoint_s) * self.columns[_SPEED, index]
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
_COLUMNS = ("arrival", "requested", "held", "type", "attained", "restarts", "delay", "speed", "to_next", "slowed", "restart")
(_ARRIVAL, _REQUESTED, _HELD, _TYPE, _ATTAINED, _RESTARTS, _DELAY, _SPEED, _TO_NEXT, _SLOWED, _RESTART) = range(len(_COLUMNS))

__all__ = ["simulate"]
