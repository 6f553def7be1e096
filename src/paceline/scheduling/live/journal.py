"""Journal of a live runner: one SQLite file with one writer, from which a killed runner continues.

Decisions are written before they are carried out. A second runner on the file is refused with the name of the first. Anyone
may read at any time.
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
"""File name in the directory of a live run."""
REMOVED = "removed: "
"""Prefix of the reason of a job that a policy ended for good."""
SCHEMA = 2
MOST_REPORTS = 32
"""Reported speeds kept for a job, one per placement."""
MOST_CURVE = 2000
"""Points of a learning curve kept for a job: the first one and the last ones."""
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
        placement: devices that it ran on.
        samples_per_s: speed over all devices.
        exchange_s: seconds that the exchange adds to the computation of a step; None: not reported.
    """

    placement: NodeDevices
    samples_per_s: float
    exchange_s: float | None = None

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(self.placement.values())


@dataclass(frozen=True, kw_only=True)
class LiveRow:
    """State of a job in the runner. Times are seconds of the epoch.

    Attributes:
        target: devices it is to run on; None: it waits.
        phase: last observed phase; ``waiting`` before the first submission. ``since``: when it began.
        starts: number of submissions. ``failures``: failures since its last progress.
        attained_s: device-seconds used. ``run_s``: seconds used. ``ran_on``: seconds by first node of the placement.
        progress: last report, first seen at ``reported_s``.
        reports: last speed on each placement, oldest first.
        restart_s: measured cost of its last start, from the start to the first step; None: unknown.
        curve: accuracy, or else the negative loss, at each reported step, oldest first.
        expected_end_s: end as predicted before it ran, or else by its first report; None: unknown.
        is_over: True if it will not run again.
        reason: why it ended, or failed last.
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
        """Name of the job."""
        return self.launch.name

    @property
    def is_removed(self) -> bool:
        """True if a policy ended the job for good, for example because it no longer learned."""
        return self.is_over and self.reason.startswith(REMOVED)

    def reporting(self, report: Report) -> LiveRow:
        """Return the row with a new speed."""
        others = [before for before in self.reports if before.placement != report.placement]
        return replace(self, reports=(*others, report)[-MOST_REPORTS:])

    def learned(self, values: Sequence[float]) -> tuple[float, ...]:
        """Return the row's curve with new points."""
        curve = (*self.curve, *values)
        return curve if len(curve) <= MOST_CURVE else (curve[0], *curve[1 - MOST_CURVE :])

    def running(self, seconds: float, placement: NodeDevices) -> LiveRow:
        """Return the row after more seconds on these devices."""
        first = min(placement, default="")
        return replace(
            self,
            run_s=self.run_s + seconds,
            attained_s=self.attained_s + seconds * sum(placement.values()),
            ran_on={**self.ran_on, first: self.ran_on.get(first, 0.0) + seconds},
        )

    def samples_per_s(self, devices: int) -> float:
        """Return the speed on ``devices``, in proportion to the next smaller reported size; NaN without a report."""
        if not self.reports:
            return math.nan
        speeds = {report.devices: report.samples_per_s for report in self.reports}
        nearest = max((n for n in speeds if n <= devices), default=min(speeds))
        return speeds[nearest] * devices / nearest

    def seconds_left(self, devices: int) -> float:
        """Return the seconds to the end on this number of devices; NaN if unknown."""
        speed = self.samples_per_s(devices)
        return self.launch.samples_left(self.progress) / speed if speed > 0 else math.nan


@dataclass(frozen=True)
class LiveSpan:
    """Period of a job on the same devices; ``end_s`` is None while it lasts."""

    start_s: float
    end_s: float | None
    placement: NodeDevices
    reason: str = ""


class JournalReader(AbstractContextManager["JournalReader"]):
    """Journal at one moment, read without its lock while a runner may be writing.

    Raises:
        UserError: the journal is missing, of another version, or damaged.
    """

    _db: sqlite3.Connection

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise UserError(f"there is no journal {self.path}", "start paceline schedule live first, or give its `state`")
        try:
            self._db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
            self._check_version()
            self._db.execute("BEGIN")  # a consistent snapshot for all queries
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
        """Return all jobs by name, in order of arrival. Raises UserError for a damaged file."""
        table = self._query("SELECT job, arrival_s, row FROM jobs ORDER BY arrival_s, place")
        try:
            rows = [_row(Launch.from_json(json.loads(launch)), arrival_s, json.loads(row)) for launch, arrival_s, row in table]
        except (ValueError, TypeError, KeyError) as error:
            raise self._broken(error) from error
        return {row.name: row for row in rows}

    def spans(self, name: str) -> list[LiveSpan]:
        """Return the periods of a job in order."""
        query = "SELECT start_s, end_s, placement, reason FROM spans WHERE name = ? ORDER BY rowid"
        table = self._query(query, name)
        return [LiveSpan(start, end, json.loads(placement), reason) for start, end, placement, reason in table]

    def events(self, name: str = "", last: int = -1) -> list[tuple[float, str, str]]:
        """Return events in order: seconds of the epoch, job, text. ``name``: name of one job only.

        ``last``: the latest ones only.
        """
        where, values = ("WHERE name = ?", [name]) if name else ("", [])
        query = f"SELECT at_s, name, what FROM events {where} ORDER BY rowid DESC LIMIT ?"
        return [(at, of, what) for at, of, what in self._query(query, *values, last)][::-1]

    def facts(self) -> dict[str, Any]:
        """Return values that the runner recorded, by name.

        They are ``policy``, ``executor``, ``round_s``, ``nodes``, ``devices`` (type of each node) and ``decided_s``.
        """
        try:
            return {name: json.loads(value) for name, value in self._db.execute("SELECT name, value FROM facts")}
        except (sqlite3.Error, ValueError):
            return {}  # an older version wrote it

    def _query(self, query: str, *values: object) -> list[Any]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> UserError:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return UserError(f"{self.path} cannot be used: {why}", "make room, or give another `state`")


class Journal(JournalReader):
    """A journal opened for writing. Other writers are refused until it is closed or its process dies.

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
        """Close the file and release the lock."""
        self._db.close()
        self._lock.close()

    def add(self, launch: Launch, arrival_s: float) -> None:
        """Add a job. A job that is already there keeps its state. Raises UserError for a different job of the same name."""
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
        """Replace rows and append events, (job, text) each, in one transaction."""
        now = time.time()
        with self._change():
            for row in rows:
                self._db.execute("UPDATE jobs SET row = ? WHERE name = ?", (_row_text(row), row.name))
            for name, what in events:
                self._db.execute("INSERT INTO events VALUES (?, ?, ?)", (now, name, what))

    def remember(self, **facts: Any) -> None:
        """Record values of the runner, replacing earlier ones."""
        with self._change():
            texts = [(name, json.dumps(value)) for name, value in facts.items()]
            self._db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", texts)

    def begin_span(self, name: str, span: LiveSpan) -> None:
        """Start a period of a job and end its previous one, unless the placement is the same."""
        last = self.spans(name)[-1:]
        if last and last[0].end_s is None and last[0].placement == span.placement:
            return
        with self._change():
            self._end_span(name, span.start_s)
            placement = json.dumps(dict(span.placement))
            self._db.execute("INSERT INTO spans VALUES (?, ?, NULL, ?, ?)", (name, span.start_s, placement, span.reason))

    def end_span(self, name: str, at_s: float) -> None:
        """End the present period of a job."""
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
