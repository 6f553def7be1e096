"""What a live runner knows, in one SQLite file with one writer: a runner that was killed goes on where it was.

A decision is in the file before it is carried out. The second runner on a file is refused, and the first is named. Anyone may
read meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from paceline.errors import UserError
from paceline.scheduling.executors.executor import NodeDevices, Phase
from paceline.scheduling.launch import Launch

NAME = "state.sqlite"
"""Of the file in the directory of a live run."""
REMOVED = "removed: "
"""How the reason of a job begins that a policy ended for good."""
SCHEMA = 2
MOST_REPORTS = 32
"""Speeds of a job that are kept, one a placement."""
MOST_CURVE = 2000
"""Points of a learning curve that are kept: the first, and the last ones."""
BUSY_S = 10.0
_TABLES = """
CREATE TABLE jobs (name TEXT PRIMARY KEY, place INTEGER, job TEXT, arrival_s REAL, row TEXT);
CREATE TABLE spans (name TEXT, start_s REAL, end_s REAL, placement TEXT, reason TEXT);
CREATE TABLE events (at_s REAL, name TEXT, what TEXT);
"""


@dataclass(frozen=True, slots=True)
class Report:
    """A speed that a job reported.

    Attributes:
        placement: where it ran. ``exchange_s``: of a step, what the exchange adds to computing; None: not reported.
    """

    placement: NodeDevices
    samples_per_s: float
    exchange_s: float | None = None

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return sum(self.placement.values())


@dataclass(frozen=True, kw_only=True)
class LiveRow:
    """A job as the runner has it. Times are seconds of the epoch.

    Attributes:
        target: where it is to run; None: nowhere.
        phase: as last observed; ``waiting`` before it was ever submitted. ``since``: when it came into it.
        starts: how often it was submitted. ``failures``: how often it failed since it last made progress.
        attained_s: device-seconds that it ran. ``run_s``: seconds; ``ran_on``: the same by the first node of its placement.
        progress: what it has reported last, first seen at ``reported_s``.
        reports: the last speed on each placement, the oldest first.
        restart_s: what its last start cost, from its start to its first step, by its first report after; None: none has told.
        curve: its accuracy, or where it reports none its negative loss, at each step that it reported, the oldest first.
        expected_end_s: when it was to end, as predicted before it ran, or else by the first report that told; None: neither.
        reason: of its end, or of its last failure.
    """

    launch: Launch
    arrival_s: float
    target: NodeDevices | None = None
    phase: Phase = "waiting"
    since: float = 0.0
    starts: int = 0
    failures: int = 0
    attained_s: float = 0.0
    run_s: float = 0.0
    ran_on: Mapping[str, float] = field(default_factory=dict)
    progress: Mapping[str, float] = field(default_factory=dict)
    reported_s: float = 0.0
    reports: tuple[Report, ...] = ()
    restart_s: float | None = None
    curve: tuple[float, ...] = ()
    expected_end_s: float | None = None
    is_over: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Of its job."""
        return self.launch.name

    @property
    def is_removed(self) -> bool:
        """Whether a policy ended it for good, such as one that no longer learned."""
        return self.is_over and self.reason.startswith(REMOVED)

    def reporting(self, report: Report) -> LiveRow:
        """The row with a new speed."""
        others = [before for before in self.reports if before.placement != report.placement]
        return replace(self, reports=(*others, report)[-MOST_REPORTS:])

    def learned(self, values: Sequence[float]) -> tuple[float, ...]:
        """Its curve with new points."""
        curve = (*self.curve, *values)
        return curve if len(curve) <= MOST_CURVE else (curve[0], *curve[1 - MOST_CURVE :])

    def running(self, seconds: float, placement: NodeDevices) -> LiveRow:
        """The row after so many more seconds on these devices."""
        first = min(placement, default="")
        return replace(
            self,
            run_s=self.run_s + seconds,
            attained_s=self.attained_s + seconds * sum(placement.values()),
            ran_on={**self.ran_on, first: self.ran_on.get(first, 0.0) + seconds},
        )

    def samples_per_s(self, devices: int) -> float:
        """As reported on so many devices or, in proportion, on the nearest number below; NaN before its first report."""
        if not self.reports:
            return math.nan
        speeds = {report.devices: report.samples_per_s for report in self.reports}
        nearest = max((n for n in speeds if n <= devices), default=min(speeds))
        return speeds[nearest] * devices / nearest

    def seconds_left(self, devices: int) -> float:
        """To its end on so many devices; NaN where its reports do not say it."""
        speed = self.samples_per_s(devices)
        return self.launch.samples_left(self.progress) / speed if speed > 0 else math.nan


@dataclass(frozen=True)
class LiveSpan:
    """A stretch of a job on the same devices; ``end_s`` is None while it lasts."""

    start_s: float
    end_s: float | None
    placement: NodeDevices
    reason: str = ""


class JournalReader(AbstractContextManager["JournalReader"]):
    """What a journal says at one moment, without its lock: a runner may write meanwhile.

    Raises:
        UserError: there is no journal, it is of another version, or it cannot be read.
    """

    _db: sqlite3.Connection

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise UserError(f"there is no journal {self.path}", "start paceline schedule live first, or give its `state`")
        try:
            self._db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
            self._check_version()
            self._db.execute("BEGIN")  # all that follows is of one moment
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _check_version(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA:
            raise UserError(f"{self.path} has schema {version}, this version reads {SCHEMA}", "use the version that wrote it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def rows(self) -> dict[str, LiveRow]:
        """Every job, by name, in the order of arrival. Raises UserError for a damaged file."""
        table = self._ask("SELECT job, arrival_s, row FROM jobs ORDER BY arrival_s, place")
        try:
            rows = [_row(Launch.from_json(json.loads(launch)), arrival_s, json.loads(row)) for launch, arrival_s, row in table]
        except (ValueError, TypeError, KeyError) as error:
            raise self._broken(error) from error
        return {row.name: row for row in rows}

    def spans(self, name: str) -> list[LiveSpan]:
        """Where a job has run, in order."""
        query = "SELECT start_s, end_s, placement, reason FROM spans WHERE name = ? ORDER BY rowid"
        table = self._ask(query, name)
        return [LiveSpan(start, end, json.loads(placement), reason) for start, end, placement, reason in table]

    def events(self, name: str = "", last: int = -1) -> list[tuple[float, str, str]]:
        """(seconds of the epoch, job, words), of one job or of all, in order; ``last``: only so many."""
        where, values = ("WHERE name = ?", [name]) if name else ("", [])
        query = f"SELECT at_s, name, what FROM events {where} ORDER BY rowid DESC LIMIT ?"
        return [(at, of, what) for at, of, what in self._ask(query, *values, last)][::-1]

    def facts(self) -> dict[str, Any]:
        """What a runner noted, by name: ``policy``, ``executor``, ``round_s``, ``nodes``, ``devices`` (the type of each node),
        ``decided_s``."""
        try:
            return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM facts")}
        except (sqlite3.Error, ValueError):
            return {}  # an older version wrote it

    def _ask(self, query: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> UserError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return UserError(f"{self.path} cannot be used: {why}", "make room, or give another `state`")


class Journal(JournalReader):
    """An open journal; nobody else can open it to write until it is closed or its process has died.

    Raises:
        UserError: another runner has it (named), or the file cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self.path.with_name(f"{self.path.name}.lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise self._broken(error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "another process"
            self._lock.close()
            raise UserError(f"{self.path} is in use by {owner}", "wait until it ends, or give another `state`") from None
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {platform.node()}\n")
        self._lock.flush()
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
            self._open()
        except (sqlite3.Error, UserError) as error:
            self._lock.close()
            raise (error if isinstance(error, UserError) else self._broken(error)) from error

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")  # others may read meanwhile; the file is on a disk of this machine
        self._db.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            with self._change():
                for statement in _TABLES.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        else:
            self._check_version()
        self._db.execute("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT)")

    def close(self) -> None:
        """Let others have it."""
        self._db.close()
        self._lock.close()

    def add(self, launch: Launch, arrival_s: float) -> None:
        """A new job. One of that name which is there already keeps its state. Raises UserError where it is another job."""
        known = self.rows().get(launch.name)
        if known is not None:
            if known.launch != launch:
                raise UserError(f"{self.path} already has another job named {launch.name}", "give the new one another name")
            return
        with self._change():
            place = self._db.execute("SELECT COUNT(*) FROM jobs").fetchone()[0]
            row, text = _row_text(LiveRow(launch=launch, arrival_s=arrival_s, since=arrival_s)), json.dumps(launch.to_json())
            self._db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", (launch.name, place, text, arrival_s, row))

    def save(self, rows: Sequence[LiveRow], events: Sequence[tuple[str, str]] = ()) -> None:
        """Replace rows, and note what has happened, (job, words) each: all or nothing."""
        now = time.time()
        with self._change():
            for row in rows:
                self._db.execute("UPDATE jobs SET row = ? WHERE name = ?", (_row_text(row), row.name))
            for name, what in events:
                self._db.execute("INSERT INTO events VALUES (?, ?, ?)", (now, name, what))

    def remember(self, **facts: Any) -> None:
        """Note facts of the runner itself; what was known by these names is replaced."""
        with self._change():
            texts = [(name, json.dumps(value)) for name, value in facts.items()]
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", texts)

    def begin_span(self, name: str, span: LiveSpan) -> None:
        """A job runs on these devices from now on; its span before ends there, unless it is the same placement."""
        last = self.spans(name)[-1:]
        if last and last[0].end_s is None and last[0].placement == span.placement:
            return
        with self._change():
            self._end_span(name, span.start_s)
            placement = json.dumps(dict(span.placement))
            self._db.execute("INSERT INTO spans VALUES (?, ?, NULL, ?, ?)", (name, span.start_s, placement, span.reason))

    def end_span(self, name: str, at_s: float) -> None:
        """A job no longer runs."""
        with self._change():
            self._end_span(name, at_s)

    def _end_span(self, name: str, at_s: float) -> None:
        self._db.execute("UPDATE spans SET end_s = MAX(?, start_s) WHERE name = ? AND end_s IS NULL", (at_s, name))

    @contextmanager
    def _change(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise self._broken(error) from error


def _row_text(row: LiveRow) -> str:
    values = {name: value for name, value in row.__dict__.items() if name not in ("launch", "arrival_s")}
    return json.dumps({**values, "reports": [(dict(r.placement), r.samples_per_s, r.exchange_s) for r in row.reports]})


def _row(launch: Launch, arrival_s: float, values: Mapping[str, Any]) -> LiveRow:
    row = LiveRow(launch=launch, arrival_s=arrival_s, **values)
    return replace(row, reports=tuple(Report(*report) for report in values["reports"]), curve=tuple(row.curve))
