"""Present state of a live schedule: where each job runs, its expected end, and why it waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.errors import UserError
from paceline.scheduling.executors.records import text_of
from paceline.scheduling.live.finished import live_schedule, node_names, noted_nodes
from paceline.scheduling.live.journal import NAME, JournalReader, LiveRow, LiveSpan
from paceline.scheduling.simulate.simulated import SimulatedSchedule

EVENTS = 12
"""Number of latest events shown."""
_SQLITE = b"SQLite format 3\0"
LATE_ROUNDS, LATE_S = 5, 30.0
"""Rounds, and least seconds, without a decision after which the runner counts as missing."""


@dataclass(frozen=True, kw_only=True)
class JobNow:
    """State of a job at this moment. Times are seconds after its arrival; NaN: unknown, or not yet.

    Attributes:
        state: a word or two, such as ``running``. ``nodes``: devices that it holds by node; empty: none.
        waited_s: seconds without devices.
        first_s: completion as predicted before it ran, or by its first report. ``now_s``: by its last report, while it runs.
        achieved_s: completion time of a finished job.
        why: reason in sentences.
    """

    name: str
    state: str
    nodes: str
    waited_s: float
    first_s: float
    now_s: float
    achieved_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """Live schedule at this moment.

    Attributes:
        schedule: jobs that have arrived, in the form of a simulated schedule; None: no job has arrived.
        names: names of its nodes by number. ``nodes``: devices of those that are up.
        held: devices that jobs hold. ``end_s``: now, in seconds after the first arrival.
        events: (seconds ago, job, text), the latest first.
        decided_s: seconds since the last decision; NaN: unknown.
        is_over: True if every job is over.
    """

    policy: str
    executor: str
    round_s: float
    schedule: SimulatedSchedule | None
    names: tuple[str, ...]
    nodes: Mapping[str, int]
    held: int
    end_s: float
    jobs: tuple[JobNow, ...]
    events: tuple[tuple[float, str, str], ...]
    decided_s: float
    is_over: bool

    @property
    def is_late(self) -> bool:
        """True if jobs are left and no decision was made for long."""
        return not self.is_over and self.decided_s > max(LATE_ROUNDS * self.round_s, LATE_S)


def journal_path(place: str | Path) -> Path:
    """Return the path of the journal, given its path or the directory of a live run. Raises UserError if there is none."""
    path = Path(place)
    path = path / NAME if path.is_dir() else path
    if not path.is_file() or not _is_database(path):
        raise UserError(f"{place} holds no live schedule", "start paceline schedule live, or give the directory of its `state`")
    return path


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def live_view(path: Path, now_s: float) -> LiveView:
    """Read the view from a journal. ``now_s``: seconds of the epoch. Raises UserError if it cannot be read."""
    with JournalReader(path) as journal:
        facts, rows = journal.facts(), journal.rows()
        spans = {name: journal.spans(name) for name in rows}
        events = journal.events(last=EVENTS)
        policy, round_s = str(facts.get("policy", "unknown policy")), float(facts.get("round_s", 0.0))
        nodes: dict[str, int] = facts.get("nodes", {})
        names = node_names(nodes, spans, noted_nodes(journal))
        there = {name: row for name, row in rows.items() if row.arrival_s <= now_s}
        drawn = bool(there) and bool(nodes or any(spans.values()))
        schedule = live_schedule(journal, nodes, policy, round_s, now_s=now_s) if drawn else None
    if schedule is not None:
        outcomes = tuple(outcome for outcome in schedule.schedule.outcomes if outcome.job.name in there)
        schedule = replace(schedule, schedule=replace(schedule.schedule, outcomes=outcomes))
    said = {name: what for _, name, what in events}
    held = {name: _held(row, spans[name]) for name, row in rows.items()}
    free = sum(nodes.values()) - sum(sum(placement.values()) for placement in held.values())
    return LiveView(
        policy=policy,
        executor=str(facts.get("executor", "unknown executor")),
        round_s=round_s,
        schedule=schedule,
        names=tuple(names),
        nodes=nodes,
        held=sum(sum(placement.values()) for placement in held.values()),
        end_s=now_s - min((row.arrival_s for row in rows.values()), default=now_s),
        jobs=tuple(
            _job(row, spans[row.name], held[row.name], now_s, _row_reason(row, held, free, policy, said, now_s))
            for row in rows.values()
        ),
        events=tuple((now_s - at, name, what) for at, name, what in reversed(events)),
        decided_s=now_s - facts["decided_s"] if "decided_s" in facts else math.nan,
        is_over=all(row.is_over for row in rows.values()),
    )


def _held(row: LiveRow, spans: Iterable[LiveSpan]) -> Mapping[str, int]:
    """Return the devices that the job holds now, by node."""
    return {} if row.is_over else next((span.placement for span in spans if span.end_s is None), {})


def _job(row: LiveRow, spans: Iterable[LiveSpan], held: Mapping[str, int], now_s: float, why: str) -> JobNow:
    until = row.since if row.is_over else max(now_s, row.arrival_s)
    ran = sum((until if span.end_s is None else span.end_s) - span.start_s for span in spans)
    left_s = row.seconds_left(sum(held.values())) if held and row.phase == "running" else math.nan
    return JobNow(
        name=row.name,
        state=_state(row, now_s),
        nodes=text_of(held) if held else "",
        waited_s=max(until - row.arrival_s - ran, 0.0),
        first_s=math.nan if row.expected_end_s is None else row.expected_end_s - row.arrival_s,
        now_s=max(row.reported_s + left_s, now_s) - row.arrival_s if left_s == left_s else math.nan,
        achieved_s=row.since - row.arrival_s if row.phase == "done" else math.nan,
        why=why,
    )


def _state(row: LiveRow, now_s: float) -> str:
    if row.is_over:
        return "removed" if row.is_removed else row.phase
    if row.arrival_s > now_s:
        return "to come"
    return {"running": "running", "stopping": "saves and stops"}.get(row.phase, "starts" if row.target else "waits")


def _row_reason(
    row: LiveRow, held: Mapping[str, Mapping[str, int]], free: int, policy: str, said: Mapping[str, str], now_s: float
) -> str:
    if row.is_over:
        return row.reason
    if row.arrival_s > now_s:
        return f"It arrives in {row.arrival_s - now_s:,.0f} s."
    failed = [f"It failed {row.failures} times without progress; last: {row.reason}."] if row.failures else []
    if row.target is None and row.phase != "running":
        least = row.launch.sizes[0]
        holders = [name for name, placement in held.items() if placement and name != row.name]
        are = "1 device is" if free == 1 else f"{max(free, 0)} devices are"
        counted = f"{are} free, and it needs {'at least ' * (len(row.launch.sizes) > 1)}{least}"
        who = f"; {', '.join(holders[:3])}{' and others' * (len(holders) > 3)} hold the rest" if holders else ""
        return " ".join([*failed, f"{counted}{who}.", *([f"{policy} gives it none now."] if free >= least else [])])
    if row.phase == "running":
        moves = row.target is not None and dict(row.target) != dict(held[row.name])
        return " ".join([*failed, *([f"It moves to {text_of(row.target or {})}."] if moves else []), *_reason(said, row.name)])
    return " ".join([*failed, f"It starts on {text_of(row.target or {})} when these devices are free."])


def _reason(said: Mapping[str, str], name: str) -> list[str]:
    """Return the reason of the policy's last decision on a job, if it is among the latest events."""
    words, _, reason = said.get(name, "").partition(": ")
    return [f"{reason[0].upper()}{reason[1:].rstrip('.')}."] if reason and words.startswith("to run on") else []
