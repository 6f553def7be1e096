"""Event loop of the simulator: arrivals, ends, outages and rounds. It carries out decisions and accounts for every second.

Deterministic: the same jobs, nodes, policy and seed give the same schedule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, shorten
from paceline.scheduling.conditions import decide
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job, check_names
from paceline.scheduling.simulate.active_jobs import ActiveJobs
from paceline.scheduling.simulate.job_table import (
    ARRIVAL,
    ATTAINED,
    COLUMNS,
    DELAY,
    HELD,
    MOST_ROUNDS,
    REQUESTED,
    RESTARTS,
    SINCE,
    SPEED,
    TYPE,
    advance_rounds,
)
from paceline.scheduling.simulate.oversized_jobs import check_running, check_sizes
from paceline.scheduling.simulate.run import JobRun
from paceline.scheduling.simulate.schedule import ClusterSchedule, ClusterSettings, JobOutcome, RunningJob
from paceline.scheduling.state import Decision, Policy, State
from paceline.units import format_seconds

MOST_IDLE = 1000
"""Decisions in a row without any work, though nothing prevents it, after which the policy counts as stuck."""
SHORTEST_ROUND_S = 0.01


def simulate(
    jobs: Sequence[Job],
    fleet: Fleet,
    policy: Policy,
    runs: Callable[[Job], JobRun],
    settings: ClusterSettings | None = None,
    progress: Callable[[float, int], None] | None = None,
    *,
    start_s: float = 0.0,
    running: Mapping[str, RunningJob] | None = None,
    targets: Collection[str] | None = None,
    to_ends: bool = False,
) -> ClusterSchedule:
    """Run all jobs to their end, or until some have started.

    Args:
        runs: function that creates the run of a job. The run of a job that already runs has its remaining work.
        progress: callback that receives the time and the number of jobs that have ended.
        start_s: time at which the simulation starts. Jobs that arrived before wait then, except those of ``running``.
        running: jobs that hold devices at the start, by name.
        targets: jobs after whose starts the simulation stops. A job that never starts is then no error. None: all jobs end.
        to_ends: stop after the ends of the targets.

    Raises:
        UserError: a running job on devices that are not free; two jobs of one name; a rigid job larger than every type it may
            use; impossible rounds or starts; jobs that the policy never starts although nothing else happens, or moves
            repeatedly without any work in between.
    """
    check_names(jobs)
    check_sizes(jobs, fleet)
    _check_times(settings or ClusterSettings())
    simulation = _Simulation(jobs, fleet, policy, runs, settings or ClusterSettings(), progress)
    simulation.open, simulation.to_ends = None if targets is None else set(targets), to_ends
    if start_s or running:
        check_running(jobs, fleet, start_s, running or {})
        simulation.start(start_s, running or {})
    return simulation.run()


def _check_times(settings: ClusterSettings) -> None:
    """Raise UserError for an illegal round, and for starts longer than jobs may stand still."""
    round_s, restart_s = settings.round_s, max(settings.restart_s, *settings.restart_by_model.values(), 0.0)
    if round_s and not SHORTEST_ROUND_S <= round_s < math.inf:
        fix = f"give at least {SHORTEST_ROUND_S:g}s, or 0 to decide at every arrival, end and outage"
        raise UserError(f"a `round` of {format_seconds(round_s)}", fix)
    if round_s and restart_s >= round_s * MOST_IDLE:
        raise UserError(
            f"a `restart` of {format_seconds(restart_s)} takes {MOST_IDLE:,} rounds of {format_seconds(round_s)} or more",
            f"give a shorter `restart`, or a `round` above {format_seconds(restart_s / MOST_IDLE)}",
        )


class _Simulation:
    """State of the loop: jobs still to arrive, and the last decision."""

    def __init__(
        self,
        jobs: Sequence[Job],
        fleet: Fleet,
        policy: Policy,
        runs: Callable[[Job], JobRun],
        settings: ClusterSettings,
        progress: Callable[[float, int], None] | None,
    ) -> None:
        self.fleet, self.policy, self.settings, self.progress = fleet, policy, settings, progress
        self.outcomes = {job.name: JobOutcome(job) for job in jobs}
        self.active = ActiveJobs(fleet, settings, self.outcomes, runs)
        self.waiting = sorted(jobs, key=lambda job: job.arrival_s)
        self.next_arrival = 0
        self.memory: object = None
        self.decision_s: list[float] = []
        self.decided: list[tuple[float, int]] = []
        self.notes: list[tuple[float, str]] = []
        self.wake_s, self.holds_until_s = math.inf, -math.inf
        self.idle = 0
        self.started = False
        self.open: set[str] | None = None
        self.to_ends = False

    def start(self, start_s: float, running: Mapping[str, RunningJob]) -> None:
        """Begin at a moment, with jobs that already run."""
        self.started, self.active.time_s = True, start_s
        self._arrive()
        self.active.resume(running)

    def run(self) -> ClusterSchedule:
        round_s, active = self.settings.round_s, self.active
        if self.waiting and not self.started:
            active.time_s = self._round_with_arrival() if round_s else self._arrival()
        while (active.jobs or self.next_arrival < len(self.waiting)) and active.time_s <= self.settings.longest_s:
            self._arrive()
            self._decide()
            if self.progress:
                self.progress(active.time_s, active.ended)
            if not active.jobs and self.next_arrival == len(self.waiting):
                break  # the last were removed
            if self.open is not None and self._over(self.open):
                break
            if round_s:
                idle = not active.jobs and self.next_arrival < len(self.waiting)
                if not idle:
                    self._pass_rounds()
                self._run_rounds(self._round_with_arrival() if idle else self._round_at(active.time_s + round_s))
            else:
                moment = self._next_event()
                if moment == math.inf:
                    if self.open is None:
                        raise self._never_starts()
                    break
                self._run_until(moment)
        return ClusterSchedule(
            fleet=self.fleet,
            outcomes=tuple(self.outcomes.values()),
            decision_s=tuple(self.decision_s),
            active=tuple(self.decided),
            notes=tuple(self.notes),
        )

    def _pass_rounds(self) -> None:
        """Skip to the last round before an event in which the policy promises the same decision."""
        round_s, c, now_s = self.settings.round_s, self.active.columns, self.active.time_s
        if self.holds_until_s <= now_s or c[DELAY].any() or not self.active.steady:
            return
        arrival, change = self._arrival(), self.fleet.next_change(now_s)
        works = (c[HELD] > 0).any() and (c[SPEED][c[HELD] > 0] > 0).all()
        waits = not c[HELD].any() and min(arrival, change) < math.inf
        if not (works or waits):
            return
        crossing = self.active.next_crossing()[0]
        forced = self.active.next_forced()
        until = min(arrival, change, self.holds_until_s, crossing - round_s, forced - round_s, self.settings.longest_s)
        first, last = round(now_s / round_s), math.ceil(min(until / round_s, MOST_ROUNDS)) - 1
        if last <= first or first * round_s != now_s:
            return
        moments: Array = np.arange(first, last + 1, dtype=np.float64) * round_s
        advance_rounds(c, moments)
        self.decided += [(moment, len(self.active.jobs)) for moment in moments[1:].tolist()]
        self.active.time_s, self.idle = float(moments[-1]), 0

    def _arrival(self) -> float:
        """Return the time of the next arrival; inf if no job is to come."""
        return self.waiting[self.next_arrival].arrival_s if self.next_arrival < len(self.waiting) else math.inf

    def _run_rounds(self, moment: float) -> None:
        """Advance to a boundary of a round. Jobs on a node that fails meanwhile stop at once."""
        while (change := self.fleet.next_change(self.active.time_s)) < moment:
            self._run_until(change)
            self.active.follow_outages()
        self._run_until(moment)

    def _round_at(self, moment: float) -> float:
        """Return the first boundary of a round at or after ``moment``."""
        return math.ceil(moment / self.settings.round_s - 1e-9) * self.settings.round_s

    def _round_with_arrival(self) -> float:
        """Return the first boundary of a round at which the next job is there.

        ``_round_at`` rounds: a job a billionth of a round later than a boundary comes at the next one.
        """
        arrival, moment = self._arrival(), self._round_at(self._arrival())
        return moment if arrival <= moment else self._round_at(moment + self.settings.round_s)

    def _arrive(self) -> None:
        first = self.next_arrival
        while self._arrival() <= self.active.time_s:
            self.next_arrival += 1
        if arrived := self.waiting[first : self.next_arrival]:
            self.active.come(arrived)

    def _next_event(self) -> float:
        """Return the next arrival, outage, wake-up of the policy, or change of a job, if there are no rounds; inf if none."""
        change = self.fleet.next_change(self.active.time_s)
        active = self.active
        return min(self._arrival(), self.wake_s, change, active.next_crossing()[0], active.next_forced())

    def _over(self, open_targets: set[str]) -> bool:
        """Return whether no target is left to start, or to end."""
        for name in list(open_targets):
            outcome = self.outcomes[name]
            if (outcome.spans and not self.to_ends) or not math.isnan(outcome.end_s) or outcome.removed:
                open_targets.discard(name)
        return not open_targets

    def _never_starts(self) -> UserError:
        reasons = [self.outcomes[job.name].held_back[-1:] for job in self.active.jobs]
        why = next((f"; {job.name}: {said[0][1]}" for job, said in zip(self.active.jobs, reasons, strict=True) if said), "")
        fix = (
            "raise what holds them back, or choose another policy"
            if why
            else "give it nodes that hold its jobs, or another policy"
        )
        return UserError(f"the policy never starts {self._named()}{why}", fix)

    def _keeps_moving(self) -> UserError:
        what = f"the policy decided {MOST_IDLE:,} times in a row without any work between, on {self._named()}"
        return UserError(what, "give a shorter `restart`, a longer `round`, or another policy")

    def _named(self) -> str:
        jobs = self.active.jobs
        names = ", ".join(shorten(job.name, 40) for job in jobs[:3])
        return f"{len(jobs)} jobs ({names}{', ...' * (len(jobs) > 3)})" if len(jobs) > 1 else f"job {names}"

    def _check_idle(self) -> None:
        """Count decisions since a job last worked, except while all jobs wait for an arrival or a repair."""
        held = bool(self.active.columns[HELD].any())
        to_come = self.next_arrival < len(self.waiting) or self.fleet.next_change(self.active.time_s) < math.inf
        self.idle = self.idle + 1 if held or not to_come else 0
        if self.idle > MOST_IDLE:
            raise self._keeps_moving() if held else self._never_starts()

    def _run_until(self, moment: float) -> None:
        """Advance time, with every change of a job until then."""
        while True:
            crossing, moments = self.active.next_crossing()
            forced = self.active.next_forced()
            if self.active.pass_to(min(crossing, forced, moment)):
                self.idle = 0
            if forced < crossing and forced <= moment:
                self.active.force()
                if not self.settings.round_s and forced == moment:
                    return
                continue
            if crossing > moment:
                return
            self.active.cross(moments)
            if not self.settings.round_s and crossing == moment:  # an end is an event
                return

    def _decide(self) -> None:
        active = self.active
        active.follow_outages()
        self.wake_s, self.holds_until_s = math.inf, -math.inf
        if not active.jobs:
            return
        active.refresh()
        state = self._state()
        started = time.perf_counter()
        decision = decide(self.policy, state) if active.conditioned or active.leaving else self.policy(state)
        self.decision_s.append(time.perf_counter() - started)
        self.decided.append((active.time_s, len(active.jobs)))
        self._note_waits(decision)
        self.memory, self.wake_s, self.holds_until_s = decision.memory, decision.wake_s, decision.holds_until_s
        if decision.note:
            self.notes.append((active.time_s, decision.note))
        self._check_idle()
        for gone, other in decision.preempted.items():
            self.outcomes[active.jobs[gone].name].preempted.append((active.time_s, active.jobs[other].name))
        active.carry_out(decision)
        if decision.removed:  # its promise included them
            self.holds_until_s = -math.inf
        for gone in sorted(decision.removed, reverse=True):
            active.dismiss(gone, decision.removed[gone])

    def _note_waits(self, decision: Decision) -> None:
        """Keep the reasons of jobs that wait, where they are not those of the decision before."""
        jobs, devices = self.active.jobs, decision.devices
        for index, reason in decision.reasons.items():
            if devices[index]:
                continue
            held_back = self.outcomes[jobs[index].name].held_back
            what = reason.partition(":")[0]
            if not held_back or held_back[-1][1].partition(":")[0] != what or self._ran_since(index, held_back[-1][0]):
                held_back.append((self.active.time_s, reason))

    def _ran_since(self, index: int, time_s: float) -> bool:
        spans = self.outcomes[self.active.jobs[index].name].spans
        return bool(spans) and spans[-1].end_s > time_s

    def _state(self) -> State:
        active, c = self.active, self.active.columns
        there = np.where(active.up, self.fleet.node_devices, 0)
        return State(
            time_s=active.time_s,
            round_s=self.settings.round_s,
            fleet=self.fleet,
            capacity=np.bincount(self.fleet.node_types, there, len(self.fleet.groups)).astype(np.int64),
            jobs=active.jobs,
            arrival_s=c[ARRIVAL],
            requested=c[REQUESTED].astype(np.int64),
            devices=c[HELD].astype(np.int64),
            type_index=c[TYPE].astype(np.int64),
            attained_s=c[ATTAINED],
            run_s=c[len(COLUMNS) :].T,
            restarts=np.maximum(c[RESTARTS], 0).astype(np.int64),
            outlooks=active.outlooks,
            restart_s=active.told_restart_s(),
            restarting_s=c[DELAY],
            memory=self.memory,
            curves=active.curves(),
            fixed=active.fixed,
            held_s=np.where(c[HELD] > 0, active.time_s - c[SINCE], 0.0),
            placements=active.placements,
            free=np.where(active.up, active.free, 0),
            leaving=active.leaving_devices(),
            loads=active.shared.loads(),
            ended=active.ran[0],
            ended_ran_s=active.ran[1],
            ended_ran_squared=active.ran[2],
        )
