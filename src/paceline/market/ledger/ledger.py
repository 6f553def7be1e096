"""Ledger of lent device time and debts: one SQLite file that only grows.

An entry debits its owner and credits its lender by the same whole number, so no unit is lost. It holds the SHA-256 of the entry
before it and its own, so ``verify`` finds a change that bypassed SQL. A writer of the file can rebuild the whole chain: sites
that do not trust the holder note ``head`` and give it to ``verify``. Times and amounts are whole numbers, and all sums are
exact. Several processes may append, one at a time, while others read.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass, fields
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast, get_args

from paceline.errors import UserError, check_name, shorten, shown

Reason = Literal["ran", "reclaimed", "data set", "checkpoint", "settlement"]
Unit = Literal["micro-credits", "micro-currency"]
REASONS: tuple[Reason, ...] = get_args(Reason)
UNITS: tuple[Unit, ...] = get_args(Unit)
LARGEST = (1 << 63) - 1
"""Largest number in an entry: SQLite's integers have 64 bits."""
BUSY_S = 60.0
"""Seconds that a writer waits for another."""
SCHEMA = 1
_APPLICATION = 0x504C4447
_LONGEST_NAME = 200
_NEXT = "restore it from a copy, or give the path of another ledger"
_ENTRY_COLUMNS = """
  number INTEGER PRIMARY KEY, origin INTEGER NOT NULL REFERENCES origins (number),
  start_us INTEGER NOT NULL, end_us INTEGER NOT NULL, job TEXT NOT NULL, owner TEXT NOT NULL, lender TEXT NOT NULL,
  device TEXT NOT NULL, device_us INTEGER NOT NULL, normalised_us INTEGER NOT NULL, wan_bytes INTEGER NOT NULL,
  restarts INTEGER NOT NULL, reason TEXT NOT NULL, amount INTEGER NOT NULL, unit TEXT NOT NULL,
  previous TEXT NOT NULL, digest TEXT NOT NULL
"""
_STATEMENTS = (
    "CREATE TABLE origins (number INTEGER PRIMARY KEY, trace TEXT NOT NULL, rule TEXT NOT NULL, seed INTEGER NOT NULL,"
    " version TEXT NOT NULL)",
    f"CREATE TABLE entries ({_ENTRY_COLUMNS})",
    *(
        f"CREATE TRIGGER {table}_{change.lower()} BEFORE {change} ON {table}"
        " BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END"
        for table in ("origins", "entries")
        for change in ("UPDATE", "DELETE")
    ),
    # INSERT OR REPLACE removes a row without its DELETE trigger, so a number that is taken is refused before
    *(
        f"CREATE TRIGGER {table}_insert BEFORE INSERT ON {table}"
        f" WHEN NEW.number IS NOT (SELECT COALESCE(MAX(number), 0) + 1 FROM {table})"
        " BEGIN SELECT RAISE(ABORT, 'the ledger only grows'); END"
        for table in ("origins", "entries")
    ),
)


@dataclass(frozen=True)
class Origin:
    """Inputs from which entries were derived.

    Args:
        trace: SHA-256 of the files read, one after the other, as 64 hexadecimal digits.
        rule: rule of the settlement, such as ``credits``.
        seed: seed of the simulation.
        version: version of Paceline.

    Raises:
        UserError: no SHA-256, an empty text, or a seed that is no whole number.
    """

    trace: str
    rule: str
    seed: int
    version: str

    def __post_init__(self) -> None:
        if not isinstance(self.trace, str) or len(self.trace) != 64 or set(self.trace) - set("0123456789abcdef"):
            raise UserError(
                f"{shown(self.trace)} is not the SHA-256 of a trace", "give 64 hexadecimal digits, or use Origin.of_files"
            )
        _check_names(rule=self.rule, version=self.version)
        _check_whole("seed", self.seed, -LARGEST)

    @classmethod
    def of_files(cls, paths: Sequence[str | Path], rule: str, seed: int, version: str) -> Origin:
        """Return the origin of these files: sites and traces. Raises UserError if one cannot be read."""
        digest = hashlib.sha256()
        for path in paths:
            try:
                digest.update(Path(path).read_bytes())
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}", "give the path of a file") from error
        return cls(digest.hexdigest(), rule, seed, version)


@dataclass(frozen=True)
class LedgerEntry:
    """One line of the ledger. Times are microseconds since the trace's start.

    Args:
        start_us: begin of the period. ``end_us``: its end.
        job: its name; empty for a settlement of many jobs.
        owner: the site whose job it is. ``lender``: the site whose devices it used.
        device: their type.
        device_us: device-microseconds.
        normalised_us: the same in microseconds of the reference device: times the predicted throughput on this type, over
            that on the reference.
        wan_bytes: sent between sites. ``restarts``: restarts of the job.
        reason: one of ``REASONS``.
        amount: payment from the owner to the lender; negative: from the lender to the owner. ``unit``: one of ``UNITS``.

    Raises:
        UserError: a number that is no whole one or beyond 64 bits, a period that ends before it begins, an unknown reason or
            unit, an empty or long name, or an amount that a site pays itself.
    """

    start_us: int
    end_us: int
    job: str
    owner: str
    lender: str
    device: str = ""
    device_us: int = 0
    normalised_us: int = 0
    wan_bytes: int = 0
    restarts: int = 0
    reason: Reason = "ran"
    amount: int = 0
    unit: Unit = "micro-credits"

    def __post_init__(self) -> None:
        _check_names(owner=self.owner, lender=self.lender)
        _check_names(0, job=self.job, device=self.device)
        for name in ("start_us", "end_us", "device_us", "normalised_us", "wan_bytes", "restarts"):
            _check_whole(name, getattr(self, name), 0)
        _check_whole("amount", self.amount, -LARGEST)
        if self.end_us < self.start_us:
            raise UserError(f"job {self.job!r}: a period from {self.start_us} to {self.end_us} us", "end it after its start")
        check_name("reason of an entry", self.reason, REASONS)
        check_name("unit of an amount", self.unit, UNITS)
        if self.owner == self.lender and self.amount:
            raise UserError(f"job {self.job!r}: site {self.owner!r} pays itself {self.amount}", "give 0, or another lender")


@dataclass(frozen=True)
class Posted:
    """A stored entry: its number from 1, its origin, and the SHA-256 digests of the previous entry and of this one."""

    number: int
    entry: LedgerEntry
    origin: Origin
    previous: str
    digest: str


@dataclass(frozen=True)
class Head:
    """Number and SHA-256 of the last entry. A saved head later proves that no earlier entry was changed."""

    number: int
    digest: str


@dataclass(frozen=True)
class Difference:
    """The first stored entry that a new simulation does not reproduce. ``field`` is ``entry`` if one side has no such entry."""

    number: int
    field: str
    stands: object
    made: object

    def __str__(self) -> str:
        return f"entry {self.number}: {self.field} is {shown(self.stands)}, the simulation makes {shown(self.made)}"


class LedgerReader(AbstractContextManager["LedgerReader"]):
    """A ledger to read. Each method sees one consistent state during appends of others.

    Raises:
        UserError: there is no such file, it is damaged, or it is something else.
    """

    _db: sqlite3.Connection

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise UserError(f"there is no ledger {self.path}", "settle a federation first, or give the path of its ledger")
        with self._file_errors():
            self._db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
        self._check_kind()

    def _check_kind(self) -> None:
        try:
            with self._file_errors():
                application, version = (self._one(f"PRAGMA {name}")[0] for name in ("application_id", "user_version"))
            if application != _APPLICATION:
                raise UserError(f"{self.path} is not a ledger of Paceline's", "give the path of a ledger, or of a new file")
            if version != SCHEMA:
                raise UserError(
                    f"{self.path} has schema {version}, this version reads {SCHEMA}", "use the version that wrote it"
                )
        except UserError:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def __len__(self) -> int:
        return self.head.number

    @property
    def head(self) -> Head:
        """Return the last entry; number 0 and the empty digest in an empty ledger."""
        with self._file_errors():
            row = self._one("SELECT number, digest FROM entries ORDER BY number DESC LIMIT 1")
        return Head(*row) if row else Head(0, "")

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Origins of the entries in order, one per version of Paceline that appended."""
        with self._file_errors():
            rows = self._db.execute("SELECT trace, rule, seed, version FROM origins ORDER BY number").fetchall()
        return tuple(Origin(*row) for row in rows)

    def entries(self) -> Iterator[Posted]:
        """Yield every entry in order. Raises UserError for a damaged file."""
        origins = self.origins
        for number, origin, *values, previous, digest in self._rows():
            if not isinstance(origin, int) or not 0 < origin <= len(origins):
                raise UserError(f"{self.path}: entry {number} names an origin that is not there", _NEXT)
            yield Posted(number, LedgerEntry(*values), origins[origin - 1], previous, digest)

    def verify(self, noted: Head | None = None) -> int:
        """Check the chain of digests, and that the file still refuses changes. Return the number of entries.

        Args:
            noted: an earlier ``head`` that must still be in the ledger. Otherwise a cut end or a rebuilt chain is not detected.

        Raises:
            UserError: the first entry that was changed, moved or removed, or another defect.
        """
        with self._file_errors():
            problem = self._one("PRAGMA quick_check(1)")[0]
            schema = {row[0] for row in self._db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if problem != "ok":
            raise UserError(f"{self.path} is damaged: {shorten(str(problem))}", _NEXT)
        if lacking := [statement for statement in _STATEMENTS if statement not in schema]:
            raise UserError(f"{self.path} was changed: it lacks {' '.join(lacking[0].split()[1:3]).lower()}", _NEXT)
        seen, origins = Head(0, ""), dict(enumerate(self.origins, start=1))
        found = noted is None or noted == seen
        for number, origin, *values, previous, digest in self._rows():
            body = _digest(number, previous, origins.get(origin), values)
            if number != seen.number + 1 or previous != seen.digest or digest != body:
                raise UserError(f"{self.path}: entry {seen.number + 1} was changed after it was written", _NEXT)
            seen = Head(number, digest)
            found = found or seen == noted
        if not found:
            raise UserError(f"{self.path}: entry {cast(Head, noted).number} is not the one that was noted", _NEXT)
        return seen.number

    def reproduces(self, entries: Iterable[LedgerEntry]) -> Difference | None:
        """Compare the entries of a new simulation with the stored ones. Return the first difference, or None."""
        for number, (posted, made) in enumerate(zip_longest(self.entries(), entries), start=1):
            stands = posted.entry if posted else None
            if stands is None or made is None:
                return Difference(number, "entry", stands, made)
            if stands != made:
                name = next(
                    field.name for field in fields(LedgerEntry) if getattr(stands, field.name) != getattr(made, field.name)
                )
                return Difference(number, name, getattr(stands, name), getattr(made, name))
        return None

    def balances(self, unit: Unit = "micro-credits") -> dict[str, int]:
        """Return receipts less payments of each site, by name; they sum to 0. Raises UserError for an unknown unit."""
        check_name("unit of an amount", unit, UNITS)
        balances: dict[str, int] = {}
        with self._file_errors():
            for owner, lender, amount in self._db.execute("SELECT owner, lender, amount FROM entries WHERE unit = ?", [unit]):
                balances[owner] = balances.get(owner, 0) - amount  # not in SQL, whose sums overflow at 64 bits
                balances[lender] = balances.get(lender, 0) + amount
        return dict(sorted(balances.items()))

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        with self._file_errors():
            yield from self._db.execute("SELECT * FROM entries ORDER BY number")

    def _one(self, query: str) -> Any:
        return self._db.execute(query).fetchone()

    @contextmanager
    def _file_errors(self) -> Iterator[None]:
        """Turn SQLite's errors in this block into a UserError that names the file."""
        try:
            yield
        except sqlite3.Error as error:
            raise UserError(f"the ledger {self.path} cannot be used: {error}", _NEXT) from error


class Ledger(LedgerReader):
    """A ledger to append to; it is created if missing.

    Args:
        origin: origin of the new entries. An existing ledger must have the same trace, rule and seed.

    Raises:
        UserError: the file has another trace, rule or seed (named), is no ledger, or cannot be written.
    """

    def __init__(self, path: str | Path, origin: Origin) -> None:
        self.path, self.origin = Path(path).absolute(), origin
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the ledger {self.path} cannot be made: {error.strerror}", "give another path") from error
        with self._file_errors():
            self._db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            self._prepare()
            self._check_kind()
            with self._file_errors():
                _turn_to_wal(self._db)
                self._db.execute("PRAGMA synchronous = FULL")  # a commit survives a loss of power
            self._place = self._known_origin()
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        """Create the tables of an empty file; another process may do so at the same time."""
        with self._file_errors():
            empty = self._one("SELECT COUNT(*) FROM sqlite_master")[0] == 0 == self._one("PRAGMA user_version")[0]
        if empty:
            with self._change():
                if self._one("SELECT COUNT(*) FROM sqlite_master")[0] == 0:
                    for statement in (
                        *_STATEMENTS,
                        f"PRAGMA application_id = {_APPLICATION}",
                        f"PRAGMA user_version = {SCHEMA}",
                    ):
                        self._db.execute(statement)

    def _known_origin(self) -> int:
        with self._change():
            origins = self.origins
            for name in ("trace", "rule", "seed"):
                if origins and getattr(origins[0], name) != getattr(self.origin, name):
                    stands, given = getattr(origins[0], name), getattr(self.origin, name)
                    raise UserError(
                        f"the ledger {self.path} has {name} {stands}, {given} was given", "give the path of a new file"
                    )
            if self.origin not in origins:
                row = (len(origins) + 1, *astuple(self.origin))
                self._db.execute("INSERT INTO origins VALUES (?, ?, ?, ?, ?)", row)
        return self.origins.index(self.origin) + 1

    def append(self, entries: Iterable[LedgerEntry]) -> Head:
        """Append all entries or none, while other writers wait. Return the new head.

        Raises:
            UserError: another process held the file for longer than ``BUSY_S``, or it cannot be written.
        """
        with self._change():
            last = self.head

            def rows() -> Iterator[tuple[object, ...]]:
                nonlocal last
                for entry in entries:
                    values = [getattr(entry, name) for name in _FIELDS]
                    number, previous = last.number + 1, last.digest
                    last = Head(number, _digest(number, previous, self.origin, values))
                    yield (number, self._place, *values, previous, last.digest)

            self._db.executemany(f"INSERT INTO entries VALUES ({', '.join('?' * (len(_FIELDS) + 4))})", rows())
        return last

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._file_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


_FIELDS = tuple(field.name for field in fields(LedgerEntry))


def _digest(number: object, previous: object, origin: Origin | None, values: list[Any]) -> str:
    """Return the SHA-256 of an entry and the previous digest. ``default``: a damaged file may hold bytes."""
    derived = astuple(origin) if origin else None
    text = json.dumps([number, previous, derived, *values], ensure_ascii=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()


def _turn_to_wal(db: sqlite3.Connection) -> None:
    """Set the journal mode, with retries: SQLite does not wait for others when it changes the mode."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _check_names(least: int = 1, /, **names: object) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not least <= len(value) <= _LONGEST_NAME or not value.isprintable():
            raise UserError(
                f"{name} {shown(value)} of an entry", f"give a printable name of {least} to {_LONGEST_NAME} letters"
            )


def _check_whole(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= LARGEST:  # NumPy's would not enter SQLite as numbers
        raise UserError(f"{name} {shown(value)} of an entry", f"give a whole number from {least} to {LARGEST}")
