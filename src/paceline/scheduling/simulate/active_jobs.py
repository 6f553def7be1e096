"""Jobs present in a simulated cluster, and their starts, restarts, moves, interference, ends and lost nodes.

The event loop is in ``simulator``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.conditions import LIMIT_SLACK_S, has_conditions, is_protected
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.placement import Placement, is_tight, placed, repacked, shape
from paceline.scheduling.shared_devices import SharedDevices
from paceline.scheduling.simulate.job_table import (
    ARRIVAL,
    ATTAINED,
    COLUMNS,
    DELAY,
    HELD,
    LIMIT,
    REQUESTED,
    RESTART,
    RESTARTS,
    SINCE,
    SLOWED,
    SPEED,
    TO_NEXT,
    TYPE,
    advance,
    crossings,
    limit_moments,
)
from paceline.scheduling.simulate.run import JobRun, Reports, SteadyRun
from paceline.scheduling.simulate.schedule import ClusterSettings, JobOutcome, RunningJob, Span
from paceline.scheduling.state import Decision, FixedSpeeds, Leaving, Outlook
from paceline.units import format_seconds

_LATE = 1e-7
_SPREAD, _KNOWN = range(2)


class ActiveJobs:
    """Present jobs in order of arrival, and the free devices.

    Args:
        outcomes: outcome of every job of the trace by name, which this class fills in.
        make_run: function that creates the run of an arriving job.

    Attributes:
        time_s: seconds since the start of the trace.
        columns: table of ``columns``, one column per job.
        placements: placement of each job; empty: it waits.
        free: free devices of each node. ``up``: mask of the nodes that are up. ``shared``: devices that jobs share.
        leaving: time at which a preempted job gives its devices back, by name.
        conditioned: True if a job states conditions on its devices.
        ended: number of jobs that ended or were removed. ``ran``: those that ran, the sum of their seconds on
            devices, and that of the squares.
    """

    def __init__(
        self, fleet: Fleet, settings: ClusterSettings, outcomes: Mapping[str, JobOutcome], make_run: Callable[[Job], JobRun]
    ) -> None:
        self.fleet, self.settings, self.outcomes, self._make_run = fleet, settings, outcomes, make_run
        self.time_s = 0.0
        self.free: Ints = fleet.node_devices.copy()
        self.up: Bools = np.ones(len(self.free), bool)
        self.jobs: list[Job] = []
        self.runs: list[JobRun] = []
        self.placements: list[Placement] = []
        self.columns: Array = np.zeros((len(COLUMNS) + len(fleet.groups), 0))
        self.ended = 0
        self.ran: tuple[int, float, float] = 0, 0.0, 0.0
        self.shared = SharedDevices()
        self.leaving: dict[str, float] = {}
        self._dismissed: dict[str, str] = {}  # reasons of jobs that are removed at the end of their grace
        self.conditioned = False
        self._limited = False
        self._report = False
        self._loose: set[str] = set()  # jobs that a move could bring onto fewer nodes or racks
        self._learning = 0
        self._fixed: Array = np.zeros((2 + len(fleet.groups), 0))  # spread, 1 if the work is known, speed on each type

    @property
    def outlooks(self) -> Sequence[Outlook]:
        """Expected speed of each job."""
        return _Outlooks(self.runs, self.columns[TO_NEXT])

    @property
    def steady(self) -> bool:
        """True if no job learns anything between two events."""
        return not self._learning

    @property
    def fixed(self) -> FixedSpeeds:
        """Expected speed of the rigid jobs that learn nothing."""
        known = np.where(self._fixed[_KNOWN] > 0, self.columns[TO_NEXT], math.nan)
        return FixedSpeeds(self._fixed[2:].T, known, self._fixed[_SPREAD])

    def curves(self) -> Sequence[Array]:
        """Reported learning metrics by job; see ``State.curves``."""
        return [run.curve() if isinstance(run, Reports) else _NO_CURVE for run in self.runs] if self._report else ()

    def told_restart_s(self) -> Array:
        """Restart cost of each job in seconds, as policies see it."""
        told, true = self.settings.believed_restart, self.columns[RESTART]
        return np.array([told.get(job.model, cost) for job, cost in zip(self.jobs, true, strict=True)]) if told else true

    def come(self, arrived: Sequence[Job]) -> None:
        """Add jobs that have arrived and wait."""
        fresh = np.zeros((len(self.columns), len(arrived)))
        speeds = np.full((len(self._fixed), len(arrived)), math.nan)
        for index, job in enumerate(arrived):
            run = self._make_run(job)
            if not isinstance(run, SteadyRun):
                self._learning += 1
            elif "devices" not in job.adapts:
                speeds[:, index] = self._fixed_speeds(job, run.outlook)
            self._report = self._report or _reports(type(run))
            self.jobs.append(job)
            self.runs.append(run)
            self.placements.append(())
            fresh[ARRIVAL, index], fresh[REQUESTED, index] = job.arrival_s, job.devices
            fresh[TYPE, index], fresh[TO_NEXT, index] = -1, run.to_next
            fresh[RESTART, index] = self.settings.restart_by_model.get(job.model, self.settings.restart_s)
            fresh[LIMIT, index] = job.limit_s + LIMIT_SLACK_S if job.limit_s else math.inf
            self.conditioned = self.conditioned or has_conditions(job)
            self._limited = self._limited or job.limit_s > 0
        self.columns = np.concatenate([self.columns, fresh], axis=1)
        self._fixed = np.concatenate([self._fixed, speeds], axis=1)

    def _fixed_speeds(self, job: Job, outlook: Outlook) -> list[float]:
        """Return a column of ``_fixed``."""
        rates = [
            float(outlook.goodput(index, job.devices)[job.devices])
            if job.devices <= group.devices and job.may_use(group.device)
            else 0.0
            for index, group in enumerate(self.fleet.groups)
        ]
        left_s = outlook.seconds_left(int(np.argmax(rates)), job.devices)[job.devices]
        return [outlook.relative_spread(), float(np.isfinite(left_s)), *rates]

    def resume(self, running: Mapping[str, RunningJob]) -> None:
        """Give jobs that run at the start of the simulation their devices."""
        for index, job in enumerate(self.jobs):
            if (at := running.get(job.name)) is None:
                continue
            group, run, c = int(self.fleet.node_types[at.placement[0][0]]), self.runs[index], self.columns
            run.place(self.fleet.groups[group].device, shape(at.placement), self.fleet.crossed(at.placement))
            c[TYPE, index], c[SPEED, index] = group, run.speed
            self._hold(index, at.placement)
            self.outcomes[job.name].spans[-1].start_s = c[SINCE, index] = self.time_s - at.ran_s
            c[ATTAINED, index], c[len(COLUMNS) + group, index] = at.ran_s * c[HELD, index], at.ran_s

    def next_forced(self) -> float:
        """Return the time at which a job next reaches its limit or gives back devices after its grace; inf if there is none."""
        leaves_s = min(self.leaving.values(), default=math.inf)
        if not self._limited or not self.jobs:
            return leaves_s
        return min(leaves_s, float(limit_moments(self.columns, self.time_s).min()))

    def force(self) -> None:
        """Stop jobs whose grace is over, and end jobs at their limit."""
        for name in [name for name, until_s in self.leaving.items() if until_s <= self.time_s + _LATE]:
            index = next(index for index, job in enumerate(self.jobs) if job.name == name)
            if reason := self._dismissed.get(name):
                self.remove(index, reason)
            else:
                self._stop(index)
        if self._limited:
            late = limit_moments(self.columns, self.time_s) <= self.time_s + _LATE
            for index in np.flatnonzero(late)[::-1].tolist():
                self.remove(index, f"it reached its limit of {format_seconds(self.jobs[index].limit_s)}")

    def leaving_devices(self) -> tuple[Leaving, ...]:
        """Devices that preempted jobs still hold."""
        if not self.leaving:
            return ()
        return tuple(
            Leaving(self.placements[index], int(self.columns[TYPE, index]), self.leaving[job.name], index)
            for index, job in enumerate(self.jobs)
            if job.name in self.leaving
        )

    def next_crossing(self) -> tuple[float, Array]:
        """Return the time of the first change among the running jobs, and the time of the next change of each job."""
        moments = crossings(self.columns, self.time_s)
        return (float(moments.min()), moments) if len(moments) else (math.inf, moments)

    def pass_to(self, moment: float) -> bool:
        """Advance time while no job changes. Return True if any job works meanwhile."""
        seconds = moment - self.time_s
        worked = seconds > 0 and bool(self.jobs) and advance(self.columns, seconds)
        self.time_s = moment
        return worked

    def cross(self, moments: Array) -> None:
        """Advance jobs at the end of a stage to their next stage or their end.

        Args:
            moments: times of the changes, as ``next_crossing`` returned them.
        """
        for index in np.flatnonzero(moments <= self.time_s + _LATE)[::-1].tolist():
            run = self.runs[index]
            run.goes_to(0.0)
            run.cross()
            if run.finished:
                self._leave(index)
            else:
                self.columns[SPEED, index] = run.speed * (1 - self.columns[SLOWED, index])
                self.columns[TO_NEXT, index] = run.to_next

    def refresh(self) -> None:
        """Let running jobs learn and choose another batch before a decision."""
        if self.steady:
            return
        for index in np.flatnonzero(self.columns[HELD]):
            run = self.runs[index]
            run.goes_to(float(self.columns[TO_NEXT, index]))
            run.refresh()
            self.columns[SPEED, index] = run.speed * (1 - self.columns[SLOWED, index])

    def dismiss(self, index: int, reason: str) -> None:
        """Remove a job at once, or at the end of its grace if it is leaving."""
        if (name := self.jobs[index].name) in self.leaving:
            self._dismissed[name] = reason
        else:
            self.remove(index, reason)

    def remove(self, index: int, reason: str) -> None:
        """Remove a job before its end."""
        outcome = self.outcomes[self.jobs[index].name]
        self._leave(index)
        outcome.end_s, outcome.removed, outcome.removed_s = math.nan, reason, self.time_s

    def _leave(self, index: int) -> None:
        outcome = self.outcomes[self.jobs[index].name]
        outcome.end_s = self.time_s
        self._release(index)
        outcome.restarts = int(self.columns[RESTARTS, index])
        if (ran_s := float(self.columns[len(COLUMNS) :, index].sum())) > 0:
            self.ran = self.ran[0] + 1, self.ran[1] + ran_s, self.ran[2] + ran_s**2
        self._learning -= not isinstance(self.runs[index], SteadyRun)
        del self.jobs[index], self.runs[index], self.placements[index]
        self.columns, self._fixed = _without(self.columns, index), _without(self._fixed, index)
        self.ended += 1
        if self.settings.interference:
            self._slow_down()

    def _release(self, index: int) -> None:
        """Free the devices of a job and end its span."""
        name = self.jobs[index].name
        self.leaving.pop(name, None)
        self._dismissed.pop(name, None)
        for node, count in self.placements[index]:
            self.free[node] += count if self.jobs[index].share == 1 else self.shared.leave(name, node)
        if self.placements[index]:
            self.outcomes[self.jobs[index].name].spans[-1].end_s = self.time_s
        self.placements[index] = ()
        self._loose.discard(self.jobs[index].name)
        self.columns[HELD, index] = 0

    def _stop(self, index: int) -> None:
        """Make a job wait."""
        self._release(index)
        self.runs[index].place("", ())
        self.columns[SPEED, index], self.columns[TYPE, index] = 0.0, -1

    def carry_out(self, decision: Decision) -> None:
        """Free the devices that a decision takes away, then place new ones, in the policy's order."""
        held, types = self.columns[HELD], self.columns[TYPE]
        changed = (decision.devices != held) | ((decision.type_index != types) & (decision.devices > 0))
        if changed.any():
            self._move(decision, changed)
        if self.settings.interference:
            self._slow_down()

    def _move(self, decision: Decision, changed: Bools) -> None:
        placements = self._repacked(decision, changed) if decision.repack else {}
        for index in np.flatnonzero(changed & (self.columns[HELD] > 0)).tolist():
            self._preempt(index, decision.grace_s.get(index, self.jobs[index].grace_s))
        for index in np.flatnonzero(changed).tolist() if decision.order is None else decision.order:
            if changed[index] and decision.devices[index] and not self.placements[index]:
                self._start(int(index), decision, placements.get(int(index)))

    def _preempt(self, index: int, grace_s: float) -> None:
        """Stop a job, or let it leave at the end of its grace."""
        if grace_s:
            self.leaving.setdefault(self.jobs[index].name, self.time_s + grace_s)
        else:
            self._stop(index)

    def _repacked(self, decision: Decision, changed: Bools) -> dict[int, Placement]:
        """Return placements after a new placement of all jobs.

        Jobs that keep their size but change nodes move now if moves are free. Otherwise they count as changed and restart.
        """
        if not self.conditioned and (undisturbed := self._undisturbed(decision, changed)) is not None:
            return undisturbed
        placements: dict[int, Placement] = {}
        for group in range(len(self.fleet.groups)):
            nodes = self.fleet.nodes_of(group)
            indices = np.flatnonzero((decision.devices > 0) & (decision.type_index == group)).tolist()
            pinned = [index for index in range(len(self.jobs)) if self._is_pinned(index)] if self.conditioned else []
            indices = [index for index in indices if index not in pinned] if pinned else indices
            here = [self.placements[index] if self.columns[TYPE, index] == group else () for index in indices]
            before = [tuple((node - nodes.start, count) for node, count in placement) for placement in here]
            sizes = np.where(self.up[nodes], self.fleet.node_devices[nodes], 0)
            sizes -= self._pinned_devices(pinned, changed)[nodes]
            after = repacked(sizes, before, decision.devices[indices], self.fleet.groups[group].leaf_nodes)
            for index, placement in zip(indices, after, strict=True):
                placements[index] = tuple((node + nodes.start, count) for node, count in placement)
        moved = [index for index, to in placements.items() if not changed[index] and to != self.placements[index]]
        free = self.settings.moves_free
        going = {index for index in moved if free and self._equally_fast(placements[index], self.placements[index])}
        for index in going:
            self._release(index)
        for index in moved:
            if index in going:
                self._hold(index, placements[index])
            else:
                changed[index] = True
        return placements

    def _pinned_devices(self, pinned: Sequence[int], changed: Bools) -> Ints:
        """Return the devices of each node that pinned jobs keep, or hold until the end of their grace."""
        kept = np.zeros(len(self.free), np.int64)
        for index in pinned:
            if self.jobs[index].share == 1 and (not changed[index] or self.jobs[index].grace_s):
                for node, count in self.placements[index]:
                    kept[node] += count
        for node, loads in self.shared.loads().items():
            kept[node] += len(loads)
        return kept

    def _is_pinned(self, index: int) -> bool:
        """Return whether a job may not move, or needs more than a free place."""
        job, held_s = self.jobs[index], self.time_s - float(self.columns[SINCE, index])
        return bool(job.topology or job.pod_devices > 1 or job.share < 1 or job.grace_s or is_protected(job, held_s))

    def _undisturbed(self, decision: Decision, changed: Bools) -> dict[int, Placement] | None:
        """Return what ``_repacked`` does if no job gains by a move, which is usual; None if one may gain.

        Then the other jobs span as few nodes as possible, and so do the changed ones on free devices.
        """
        going = {self.jobs[index].name for index in np.flatnonzero(changed & (self.columns[HELD] > 0)).tolist()}
        if not going.issuperset(self._loose):
            return None
        free = self.free.copy()
        for index in np.flatnonzero(changed & (self.columns[HELD] > 0)).tolist():
            for node, count in self.placements[index]:
                free[node] += count
        free = np.where(self.up, free, 0)
        placements: dict[int, Placement] = {}
        starts = np.flatnonzero(changed & (decision.devices > 0))
        for index in starts[np.argsort(-decision.devices[starts], kind="stable")].tolist():
            first = self.fleet.nodes_of(int(decision.type_index[index]))
            group = self.fleet.groups[int(decision.type_index[index])]
            placement = placed("fewest_nodes", free[first], int(decision.devices[index]), group.leaf_nodes)
            if not placement or not is_tight(placement, group.devices_per_node, group.leaf_nodes):
                return None
            placements[index] = tuple((node + first.start, count) for node, count in placement)
            for node, count in placements[index]:
                free[node] -= count
        return placements

    def _equally_fast(self, one: Placement, other: Placement) -> bool:
        """Return whether a job is equally fast on both placements."""
        return shape(one) == shape(other) and self.fleet.crossed(one) == self.fleet.crossed(other)

    def _is_tight(self, placement: Placement) -> bool:
        """Return whether no placement of as many devices of the type could span fewer nodes or racks."""
        index = int(self.fleet.node_types[placement[0][0]])
        group, first = self.fleet.groups[index], self.fleet.nodes_of(index).start
        there = tuple((node - first, count) for node, count in placement)
        return is_tight(there, group.devices_per_node, group.leaf_nodes)

    def _hold(self, index: int, placement: Placement, reason: str = "") -> None:
        """Give these devices to a job."""
        job = self.jobs[index]
        for node, count in placement:
            self.free[node] -= count if job.share == 1 else self.shared.join(job.name, node, job.share)
        self.placements[index] = placement
        self.columns[SINCE, index] = self.time_s
        if len(placement) > 1 and not self._is_tight(placement):
            self._loose.add(self.jobs[index].name)
        self.columns[HELD, index] = sum(shape(placement))
        device, run = self.fleet.groups[self.fleet.node_types[placement[0][0]]].device, self.runs[index]
        span = Span(self.time_s, self.time_s, device, placement, run.batch, reason, run.strategy)
        self.outcomes[self.jobs[index].name].spans.append(span)

    def _start(self, index: int, decision: Decision, placement: Placement | None) -> None:
        group, devices = int(decision.type_index[index]), int(decision.devices[index])
        nodes = self.fleet.nodes_of(group)
        placement = decision.placements.get(index) if placement is None else placement
        if placement is None:
            free = np.where(self.up[nodes], self.free[nodes], 0)
            placement = placed(decision.rule, free, devices, self.fleet.groups[group].leaf_nodes)
            placement = tuple((node + nodes.start, count) for node, count in placement)
        if not placement and self.leaving:  # it starts when they have left
            return
        if not placement:
            raise RuntimeError(f"{self.jobs[index].name}: the policy gave {devices} devices that are not free")
        run, c = self.runs[index], self.columns
        run.goes_to(float(c[TO_NEXT, index]))
        run.place(self.fleet.groups[group].device, shape(placement), self.fleet.crossed(placement))
        c[TYPE, index], c[SPEED, index], c[DELAY, index] = group, run.speed, c[RESTART, index]
        c[RESTARTS, index] = c[RESTARTS, index] + 1 if self.outcomes[self.jobs[index].name].spans else 0
        self._hold(index, placement, decision.reasons.get(index, ""))

    def _slow_down(self) -> None:
        """Apply interference between jobs on several nodes that share a node (Pollux, OSDI 2021, section 4.2.1)."""
        users = np.zeros(len(self.free), np.int64)
        for placement in self.placements:
            if len(placement) > 1:
                users[[node for node, _ in placement]] += 1
        for index, placement in enumerate(self.placements):
            shares = len(placement) > 1 and any(users[node] > 1 for node, _ in placement)
            self.columns[SLOWED, index] = self.settings.interference if shares else 0.0
            self.columns[SPEED, index] = self.runs[index].speed * (1 - self.columns[SLOWED, index])

    def follow_outages(self) -> None:
        """Stop jobs on nodes that went away. After a failure the work since the last checkpoint is lost."""
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


@cache
def _reports(kind: type) -> bool:
    return issubclass(kind, Reports)


def _without(table: Array, column: int) -> Array:
    """Return the table without a column. Its memory is used again."""
    table[:, column:-1] = table[:, column + 1 :]
    return table[:, :-1]


class _Outlooks(Sequence[Outlook]):
    """Outlooks of runs, created on access because many policies need none.

    Args:
        to_next: ``to_next`` of each run at present.
    """

    def __init__(self, runs: Sequence[JobRun], to_next: Array) -> None:
        self._runs, self._to_next = runs, to_next

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Outlook:  # type: ignore[override]
        run = self._runs[index]
        if isinstance(run, SteadyRun):
            run.goes_to(float(self._to_next[index]))
        return run.outlook


_NO_CURVE = np.zeros(0)
