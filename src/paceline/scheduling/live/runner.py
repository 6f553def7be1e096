"""Loop that runs jobs for real: in each round it observes the executor, lets the policy decide, and carries out the changes.

Each round moves the cluster closer to the decision and can be repeated. A killed runner or a silent executor costs a round and
no job.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UserError
from paceline.scheduling.executors.executor import ChecksJobs, Executor, NodeDevices, Observed, Unavailable, Watches
from paceline.scheduling.executors.records import text_of
from paceline.scheduling.launch import Launch
from paceline.scheduling.live.journal import REMOVED, Journal, LiveRow, LiveSpan, Report
from paceline.scheduling.live.nodes import UNKNOWN, LiveNodes

MOST_FAILURES = 3
"""Failures in a row without progress after which a job is over."""
FOLLOW_S = 1.0
"""Seconds between looks at the executor while jobs wait for devices that others are leaving."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Observed state of a live cluster.

    Attributes:
        now_s: seconds of the epoch.
        rows: jobs that have arrived and are not over, in order of arrival.
        placed: devices that each job holds or moves to, by job name.
        nodes: nodes that are up, with their devices.
        past: jobs that are over, whose reports still count.
        memory: ``memory`` of the previous targets.
    """

    now_s: float
    rows: Sequence[LiveRow]
    placed: Mapping[str, NodeDevices]
    nodes: Sequence[tuple[str, int]]
    past: Sequence[LiveRow] = ()
    memory: Any = None

    @property
    def start_s(self) -> float:
        """First arrival, the origin of time for policies. It is the same after a restart of the runner."""
        return min(row.arrival_s for row in (*self.rows, *self.past))


@dataclass(frozen=True)
class Targets:
    """Placements until the next round. Jobs that are not in ``placements`` wait.

    Attributes:
        placements: devices by node, by job name.
        reasons: reason by job name.
        removed: jobs that leave for good before their end, with the reason.
        memory: value that the next snapshot returns. After a restart of the runner only JSON values survive.
    """

    placements: Mapping[str, NodeDevices]
    reasons: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    memory: Any = None


Planner = Callable[[Snapshot], Targets]


def first_look(executor: Executor) -> Sequence[tuple[str, int]]:
    """Return the nodes of the executor at its first request. Raises UserError if it does not answer."""
    try:
        return executor.nodes()
    except Unavailable as error:
        raise UserError(f"the executor does not answer: {error}", "start it, or see that it can be reached from here") from None


def check_start(executor: Executor, jobs: Iterable[Launch], kinds: LiveNodes | None = None) -> None:
    """Check that the executor answers and that each of these new jobs can start.

    Args:
        kinds: device types of its nodes.

    Raises:
        UserError: the executor does not answer, a job's directory is missing, or a job is larger than all nodes it may use.
    """
    every = tuple(jobs)
    for launch in every:
        if isinstance(executor, ChecksJobs):
            executor.check(launch)
        elif not Path(launch.directory).is_dir():
            raise UserError(f"job {launch.name}: no directory {launch.directory}", "make it, or correct its `directory`")
    nodes = first_look(executor)
    kinds = kinds or LiveNodes()
    types = {name: kinds.kind(name).device for name, _ in nodes}
    for launch in every:
        usable = [count for name, count in nodes if not launch.job.device_types or types[name] in launch.job.device_types]
        if launch.sizes[0] > sum(usable):
            only = f" of {' or '.join(launch.job.device_types)}" if launch.job.device_types else ""
            are = f" of {' and '.join(sorted(set(types.values()) - {UNKNOWN})) or 'unknown devices'}" if only else ""
            raise UserError(
                f"job {launch.name} asks for {launch.sizes[0]:,} {'device' if launch.sizes[0] == 1 else 'devices'}{only}",
                f"the executor has {sum(count for _, count in nodes):,}{are} on {len(nodes):,} "
                f"{'node' if len(nodes) == 1 else 'nodes'}",
            )


class Runner:
    """The loop of a live schedule.

    Args:
        journal: journal of the jobs, which are added before or while the loop runs.
        policy: function from a snapshot to targets.
        round_s: seconds between decisions.
        say: callback for lines about events.
        clock, sleep: functions of time; tests replace them.
    """

    def __init__(
        self,
        executor: Executor,
        journal: Journal,
        policy: Planner,
        round_s: float = 10.0,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._executor, self._journal, self._policy, self._round_s = executor, journal, policy, round_s
        self._say, self._clock, self._sleep = say or (lambda text: None), clock, sleep
        facts = journal.facts()
        self._last_s: float | None = facts.get("looked_s")
        self._leaving = self._moving = False
        self._memory: Any = facts.get("memory")

    def run(self) -> None:
        """Run rounds until every job is over. Between rounds, waiting jobs start as soon as their devices are free.

        An executor that watches its jobs is also polled after each change, at most every ``FOLLOW_S`` seconds.
        """
        watching = self._executor if isinstance(self._executor, Watches) else None
        while self.round():
            until_s = self._clock() + self._round_s
            while (left_s := until_s - self._clock()) > FOLLOW_S and (self._moving or watching is not None):
                if self._moving or watching is None or watching.wait(left_s - FOLLOW_S):
                    self._sleep(FOLLOW_S)
                    self.round(decide=False)
            self._sleep(max(until_s - self._clock(), 0.0))

    def round(self, decide: bool = True) -> bool:
        """Run one round, and return False if every job is over. Raises RuntimeError for an impossible decision.

        Args:
            decide: ask the policy; else continue with its last decision.
        """
        now_s = self._clock()
        rows = self._journal.rows()
        if all(row.is_over for row in rows.values()) and not self._leaving:
            return False
        try:
            nodes = self._executor.nodes()
            observed = self._executor.poll()
            rows = {name: self._updated_row(row, observed.get(name), dict(nodes), now_s) for name, row in rows.items()}
            self._last_s = now_s
            facts = {"decided_s": now_s} if decide else {}
            self._journal.remember(nodes=dict(nodes), looked_s=now_s, round_s=self._round_s, **facts)
            self._leaving = any(observed[name].holds_devices for name, row in rows.items() if row.is_over and name in observed)
            present = [row for row in rows.values() if row.arrival_s <= now_s and not row.is_over]
            if present and decide:
                placed = {row.name: _place(observed[row.name]) for row in present if row.name in observed}
                held = {name: place for name, place in placed.items() if observed[name].holds_devices}
                past = [row for row in rows.values() if row.is_over]
                state = Snapshot(now_s=now_s, rows=present, placed=held, nodes=nodes, past=past, memory=self._memory)
                decision = self._policy(state)
                _check(state, decision)
                self._memory = decision.memory
                self._journal.remember(memory=_plain(decision.memory))
                present = self._decided(present, decision, now_s)
                self._leaving = self._leaving or bool(decision.removed)
            self._moving = self._carry_out(present, observed, dict(nodes), now_s)
        except Unavailable as error:
            self._say(f"no answer, asked again next round: {error}")
        return self._leaving or not all(row.is_over for row in self._journal.rows().values())

    def _updated_row(self, row: LiveRow, seen: Observed | None, nodes: Mapping[str, int], now_s: float) -> LiveRow:
        """Return the row updated by an observation. Events and spans are recorded."""
        if seen is None or row.is_over:
            return row
        fresh = replace(row, phase=seen.phase, since=seen.since, progress=seen.progress or row.progress)
        fresh = self._ran(fresh, row, seen, now_s)
        if seen.phase == "running" and seen.progress.get("step", 0.0) > row.progress.get("step", 0.0):
            fresh = self._reported(fresh, row, seen, now_s)
        if seen.phase == "done":
            fresh = replace(fresh, is_over=True, target=None)
        elif seen.phase == "failed" and (row.phase, row.since) != ("failed", seen.since):
            lost = [node for node in seen.placement if node not in nodes]
            failures = row.failures + (0 if lost else 1)  # the job is not to blame for a lost node
            why = f"lost {', '.join(lost)}; {seen.reason}" if lost else seen.reason
            fresh = replace(fresh, failures=failures, is_over=failures >= MOST_FAILURES, reason=why, target=None)
        if fresh != row:
            changed = (fresh.phase, fresh.failures) != (row.phase, row.failures)
            reason = fresh.reason if fresh.phase == "failed" else seen.reason
            words = f"{fresh.phase} on {text_of(seen.placement)}{f': {reason}' if reason else ''}"
            self._journal.save([fresh], [(row.name, words)] if changed else [])
            if changed:
                self._say(f"{row.name}: {words}")
        return fresh

    def _ran(self, fresh: LiveRow, row: LiveRow, seen: Observed, now_s: float) -> LiveRow:
        """Return the row with the seconds that it ran since the last look, including the absence of a runner."""
        last_s = seen.since if self._last_s is None else self._last_s
        was_running = row.phase in ("running", "stopping")
        if seen.phase == "running":
            self._journal.begin_span(row.name, LiveSpan(max(seen.since, row.arrival_s), None, seen.placement, ""))
            return fresh.running(max(now_s - max(last_s, seen.since), 0.0), seen.placement)
        if seen.phase == "stopping":
            return fresh.running(max(now_s - last_s, 0.0), seen.placement) if was_running else fresh
        ended_s = seen.since if seen.since > row.since else now_s
        if was_running:
            self._journal.end_span(row.name, ended_s)
            return fresh.running(max(ended_s - last_s, 0.0), seen.placement)
        if seen.phase in ("done", "failed") and row.starts and (row.phase, row.since) != (seen.phase, seen.since):
            began_s = min(max(last_s, row.arrival_s), ended_s)  # it ran and ended between two looks
            self._journal.begin_span(row.name, LiveSpan(began_s, None, seen.placement, ""))
            self._journal.end_span(row.name, ended_s)
            return fresh.running(ended_s - began_s, seen.placement)
        return fresh

    def _reported(self, fresh: LiveRow, row: LiveRow, seen: Observed, now_s: float) -> LiveRow:
        """Return the row with a new report: progress, speed, and the cost of its start."""
        fresh = replace(fresh, failures=0, reported_s=now_s, curve=row.learned(_learned(seen.progress)))
        devices, speed = sum(seen.placement.values()), seen.progress.get("samples_per_s", 0.0)
        if seen.progress.get("workers", devices) == devices and speed > 0:
            fresh = fresh.reporting(Report(dict(seen.placement), speed, seen.progress.get("exchange_s")))
            if row.reported_s <= seen.since and row.launch.global_batch:  # the first report since it started
                steps = seen.progress["step"] - row.progress.get("step", 0.0)
                worked_s = steps * row.launch.global_batch / speed
                late_s = self._round_s / 2  # mean delay until a report is seen
                fresh = replace(fresh, restart_s=max(now_s - seen.since - worked_s - late_s, 0.0))
        if fresh.expected_end_s is None and not math.isnan(left_s := fresh.seconds_left(devices)):
            fresh = replace(fresh, expected_end_s=now_s + left_s)
        return fresh

    def _decided(self, rows: Sequence[LiveRow], decision: Targets, now_s: float) -> list[LiveRow]:
        """Return the rows with their new targets, which are written to the journal before they are carried out."""
        decided = []
        for row in rows:
            wanted = decision.placements.get(row.name) or None
            target = None if wanted is None else dict(wanted)
            if row.name in decision.removed:
                target = None
                row = replace(row, is_over=True, phase="failed", since=now_s, reason=f"{REMOVED}{decision.removed[row.name]}")
                self._journal.save([row], [(row.name, row.reason)])
                self._journal.end_span(row.name, now_s)
                self._say(f"{row.name}: {row.reason}")
            if row.target != target:
                reason = decision.reasons.get(row.name, "")
                words = f"to run on {text_of(target)}" if target else "to wait"
                row = replace(row, target=target)
                self._journal.save([row], [(row.name, f"{words}{f': {reason}' if reason else ''}")])
            decided.append(row)
        return decided

    def _carry_out(
        self, rows: Sequence[LiveRow], observed: Mapping[str, Observed], nodes: Mapping[str, int], now_s: float
    ) -> bool:
        """Free devices first, then start jobs on free ones. Return True if jobs still wait for devices."""
        free, moving = dict(nodes), False
        for other in observed.values():
            for node, devices in other.placement.items() if other.holds_devices else ():
                free[node] = free.get(node, 0) - devices
        for row in sorted(rows, key=lambda row: bool(row.target)):
            seen = observed.get(row.name)
            try:
                self._approach(row, seen, free)
            except UserError as error:
                failures = row.failures + 1
                over = failures >= MOST_FAILURES
                failed = replace(row, failures=failures, is_over=over, phase="failed", since=now_s, reason=error.message)
                self._journal.save([failed], [(row.name, str(error))])
                self._say(f"{row.name}: {error}")
            moving |= row.target is not None and not (seen is not None and seen.holds_devices)
        return moving

    def _approach(self, row: LiveRow, seen: Observed | None, free: dict[str, int]) -> None:
        """Take one step of a job from its observed state to its target."""
        target = row.target
        holds = seen is not None and seen.holds_devices
        if target is None:
            if seen is not None and holds and (seen.phase != "stopping" or seen.target is not None):
                self._executor.stop(row.name, row.launch.grace_s)
        elif seen is not None and holds:
            if _place(seen) != target and seen.phase != "stopping":
                self._journal.save([replace(row, starts=row.starts + 1)])
                self._executor.resize(row.name, target)
            elif seen.phase == "stopping" and seen.target is not None and seen.target != target:
                self._executor.resize(row.name, target)
        elif all(free.get(node, 0) >= devices for node, devices in target.items()):
            for node, devices in target.items():
                free[node] -= devices
            self._journal.save([replace(row, starts=row.starts + 1)])
            self._executor.submit(row.launch, target)


def _plain(memory: Any) -> Any:
    """Return the value if JSON can hold it, else None."""
    try:
        json.dumps(memory)
    except TypeError:
        return None
    return memory


def _learned(progress: Mapping[str, float]) -> list[float]:
    """Return the learning metric of a report: accuracy, or else the negative loss."""
    return [sign * progress[name] for name, sign in (("accuracy", 1), ("loss", -1)) if name in progress][:1]


def _place(seen: Observed) -> NodeDevices:
    """Return the devices that a job runs on, or moves to."""
    return dict(seen.placement if seen.target is None else seen.target)


def _check(state: Snapshot, decision: Targets) -> None:
    """Raise RuntimeError for targets that exceed the nodes, or an illegal size of a job."""
    left = dict(state.nodes)
    jobs = {row.name: row.launch for row in state.rows}
    for name, placement in decision.placements.items():
        for node, devices in placement.items():
            left[node] = left.get(node, 0) - devices
            if left[node] < 0 or devices < 1:
                raise RuntimeError(f"the policy gives {name} {devices} devices of {node}, more than it has left")
        if placement and sum(placement.values()) not in jobs[name].sizes:
            raise RuntimeError(f"the policy gives {name} {sum(placement.values())} devices; it runs on {jobs[name].sizes}")
