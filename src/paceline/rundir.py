"""Run directory with the predictions and measurements of one or several runs, as plain files.

``prediction.json``, ``record.jsonl``, ``predicted.trace.json``, ``measured.trace.json`` and ``report.html``; of a simulated
cluster ``schedule.json`` and ``report.html``.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from paceline.chrome_trace import chrome_trace, read_chrome_trace
from paceline.errors import UserError, shorten
from paceline.record import SCHEMA, Event, Metrics, RunRecord, append_line, parse_json, read_lines
from paceline.trust_history import TrustHistory, from_csv, to_csv

PROGRESS = "progress.json"
"""Progress of a run after each epoch: ``epoch``, ``step``, ``samples_per_s``, ``accuracy``, ``loss``, ``workers``."""
Timelines = dict[str, tuple[Event, ...]]
_T = TypeVar("_T")
_M = TypeVar("_M", bound=Metrics)
_NUMBERS = {f.name for f in fields(RunRecord) if f.type in ("float", "int")}
_MAPPINGS = {"strategy", "environment", "histogram", "recipe", "batch_efficiency"}
_TRUST_STEPS = 100  # of a run, in trust.csv: enough for a picture, a megabyte for ResNet-50


@dataclass(frozen=True)
class RunDirContents:
    """Contents of a run directory, each by run label, in the order written."""

    predictions: dict[str, Metrics] = field(default_factory=dict)
    records: dict[str, RunRecord] = field(default_factory=dict)
    predicted: Timelines = field(default_factory=dict)
    measured: Timelines = field(default_factory=dict)
    clusters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The cluster that each prediction is for, where the prediction says."""
    trust: dict[str, TrustHistory] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """All runs, in the order run, then those only predicted."""
        return list(dict.fromkeys([*self.records, *self.predictions]))


def run_label(strategy: Mapping[str, Any], taken: Collection[str] = ()) -> str:
    """Return a free short name of a run: its compression, then with its exchange, then with a number. Local steps count too."""
    name = str(strategy.get("compression") or "run")
    if strategy.get("sync_every", 1) != 1:
        name = f"{name} every {strategy['sync_every']}"
    if name in taken and strategy.get("exchange"):
        name = f"{name}, {strategy['exchange']}"
    return free_name(name, taken)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the first unused name among ``name``, ``name 2``, ``name 3``, ..."""
    if name not in taken:
        return name
    return next(f"{name} {n}" for n in range(2, len(taken) + 3) if f"{name} {n}" not in taken)


class RunDir:
    """Reader and writer of the files of one run directory. Nothing is created before the first write."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.prediction_path = self.path / "prediction.json"
        self.record_path = self.path / "record.jsonl"
        self.predicted_path = self.path / "predicted.trace.json"
        self.measured_path = self.path / "measured.trace.json"
        self.trust_path = self.path / "trust.csv"
        self.schedule_path = self.path / "schedule.json"
        self.report_path = self.path / "report.html"
        self.progress_path = self.path / PROGRESS
        self.lock_path = self.path / ".lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory against other runs, and create it if missing.

        The kernel releases the lock when this process ends, in any way. Raises UserError with the process that holds the lock,
        or for a directory that cannot be written.
        """
        import fcntl  # here, for the sake of systems without it that only predict

        new = not self.path.exists()
        self.check_writable()
        while True:
            try:
                lock = self.lock_path.open("a+", encoding="utf-8")
            except OSError as error:
                raise unwritable(self.lock_path, error) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with lock:
                    lock.seek(0)
                    owner = lock.read().strip() or "another process"
                raise UserError(
                    f"{self.path} is in use by {owner}", "wait for its end, or choose another `out` directory"
                ) from None
            except OSError:
                break  # a file system without locks
            if self.lock_path.exists() and os.path.samestat(os.fstat(lock.fileno()), self.lock_path.stat()):
                break
            lock.close()  # its owner has just ended and removed it
        with lock:
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {platform.node()}\n")
            lock.flush()
            try:
                yield
            finally:
                self.lock_path.unlink(missing_ok=True)
                if new:
                    with suppress(OSError):
                        self.path.rmdir()  # where nothing came of it

    def check_writable(self) -> None:
        """Create the directory and try to write, so that a run of hours does not fail at its last line.

        Existing files are read too, since new results are merged into them. Raises UserError.
        """
        fix = "choose another `out` directory"
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, not a directory", fix)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(b"paceline")
        except OSError as error:
            raise UserError(f"cannot write to {self.path}: {error.strerror or error}", fix) from error
        if any(p.exists() for p in self._inputs()):
            self.read(partial=True)

    def write_prediction(self, label: str, prediction: Metrics) -> None:
        """Add or replace one prediction and its timeline. Raises UserError when it cannot be written or merged."""
        data = self._read_predictions(partial=True)
        data[label] = prediction.to_json()
        self._write(self.prediction_path, {"schema": SCHEMA, "predictions": data})
        self._add_timeline(self.predicted_path, label, prediction.timeline)

    def add_record(self, label: str, record: RunRecord) -> str:
        """Append one record and its timeline; returns its label.

        A measurement is never overwritten: if ``label`` is used, the exchange and then a number is added.
        Raises UserError when it cannot be written.
        """
        taken = list(self._read_records(partial=True))
        if label in taken:
            label = run_label({**record.strategy, "compression": label}, taken)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # as RunRecord.append writes it, plus the label, which readers of plain records ignore
            append_line(self.record_path, json.dumps({"label": label, **record.to_json()}))
        except OSError as error:
            raise unwritable(self.record_path, error) from error
        self._add_timeline(self.measured_path, label, record.timeline)
        return label

    def write_trust(self, label: str, history: TrustHistory) -> None:
        """Add or replace one run's trust ratios, thinned to a hundred steps. Raises UserError when they cannot be written."""
        self._write_text(self.trust_path, to_csv({**self._read_trust(), label: history.thinned(_TRUST_STEPS)}))

    def read(self, *, partial: bool = False) -> RunDirContents:
        """Read everything in the directory.

        With ``partial``, missing files count as empty if there is a prediction, a record or trust ratios.
        Raises UserError naming a missing or broken file and the next step.
        """
        if not self.path.is_dir():
            raise UserError(f"no run directory {self.path}", f"run paceline train --out {self.path} first")
        if partial and not any(p.exists() for p in (self.prediction_path, self.record_path, self.trust_path)):
            raise self._missing(self.record_path, "train")
        records = self._read_records(partial)
        raw = self._read_predictions(partial)
        return RunDirContents(
            predictions={label: self._metrics(label, item) for label, item in raw.items()},
            records=records,
            predicted=self._read_timelines(self.predicted_path, "predict", partial),
            measured=self._read_timelines(self.measured_path, "train", partial),
            clusters={k: v["cluster"] for k, v in raw.items() if isinstance(v.get("cluster"), dict)},
            trust=self._read_trust(),
        )

    def write_progress(self, progress: Mapping[str, float]) -> None:
        """Replace the progress of the current run, for other processes. Raises UserError when it cannot be written."""
        self._write_text(self.progress_path, json.dumps(progress) + "\n")

    def write_schedule(self, data: Mapping[str, Any]) -> None:
        """Replace the simulated schedules. Raises UserError when they cannot be written."""
        self._write_text(self.schedule_path, json.dumps(data, allow_nan=False) + "\n")

    def read_schedule(self, parse: Callable[[Mapping[str, Any]], _T]) -> _T:
        """Read the schedules with ``parse``. Raises UserError if there are none or ``parse`` fails."""
        first = f"run paceline schedule TRACE --cluster 2x4xT4 --out {self.path} first"
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file", "give the directory that paceline schedule wrote")
        if not self.path.is_dir():
            raise UserError(f"no run directory {self.path}", first)
        if not self.schedule_path.exists():
            raise UserError(f"no {self.schedule_path.name} in {self.path}", first)
        return _parse(self.schedule_path, lambda path: parse(parse_json(path.read_bytes())))

    def write_report(self, html: str) -> Path:
        """Write ``html`` to report.html and return its path. Raises UserError when it cannot be written."""
        self._write_text(self.report_path, html)
        return self.report_path

    def _inputs(self) -> tuple[Path, ...]:
        return self.prediction_path, self.record_path, self.predicted_path, self.measured_path, self.trust_path

    def _missing(self, path: Path, verb: str) -> UserError:
        return UserError(f"no {path.name} in {self.path}", f"run paceline {verb} --out {self.path} first")

    def _read_predictions(self, partial: bool) -> dict[str, dict[str, Any]]:
        path = self.prediction_path
        if not path.exists():
            if partial:
                return {}
            raise self._missing(path, "predict")

        def parse(path: Path) -> dict[str, dict[str, Any]]:
            return {str(label): dict(item) for label, item in parse_json(path.read_bytes())["predictions"].items()}

        return _parse(path, parse)

    def _metrics(self, label: str, item: Mapping[str, Any]) -> Metrics:
        try:
            return _checked(Metrics.from_json(item))
        except (TypeError, ValueError) as error:
            raise _broken(self.prediction_path, f"prediction {label!r}: {error}") from error

    def _read_records(self, partial: bool) -> dict[str, RunRecord]:
        path = self.record_path
        if not path.exists():
            if partial:
                return {}
            raise self._missing(path, "train")

        def parse(path: Path) -> dict[str, RunRecord]:
            records: dict[str, RunRecord] = {}
            for number, data in read_lines(path):
                try:
                    label, record = _record(data, records)
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    raise ValueError(f"line {number}: {_fault_text(error)}") from error
                records[label] = record
            return records

        return _parse(path, parse)

    def _read_timelines(self, path: Path, verb: str, partial: bool) -> Timelines:
        if not path.exists():
            if partial:
                return {}
            raise self._missing(path, verb)
        return _parse(path, lambda path: read_chrome_trace(parse_json(path.read_bytes())))

    def _read_trust(self) -> dict[str, TrustHistory]:
        if not self.trust_path.exists():
            return {}
        _check_file(self.trust_path)
        return from_csv(self.trust_path)

    def _add_timeline(self, path: Path, label: str, timeline: tuple[Event, ...]) -> None:
        self._write(path, chrome_trace({**self._read_timelines(path, "", partial=True), label: timeline}))

    def _write(self, path: Path, data: Mapping[str, Any]) -> None:
        self._write_text(path, json.dumps(data, indent=1) + "\n")

    def _write_text(self, path: Path, text: str) -> None:
        write_whole(path, text)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old file or the new one, even if the disk is full. Raises UserError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True) if temporary.parent.is_dir() else None
        raise unwritable(path, error) from error


def _checked(run: _M) -> _M:
    """Return the run if its numbers are numbers and its mappings mappings, because a file may be edited by hand."""
    for item in fields(run):
        value = getattr(run, item.name)
        number = item.name in _NUMBERS and not (isinstance(value, int | float) and not isinstance(value, bool))
        if number or (item.name in _MAPPINGS and not isinstance(value, Mapping)):
            raise ValueError(f"{item.name} is {value!r}")
    return run


def _record(data: Mapping[str, Any], taken: Collection[str]) -> tuple[str, RunRecord]:
    record = _checked(RunRecord.from_json(data))
    record = replace(record, curve=tuple(dict(entry) for entry in record.curve))
    label = data.get("label")
    return (free_name(str(label), taken) if label else run_label(record.strategy, taken)), record


def _check_file(path: Path) -> None:
    """Raise UserError for a pipe or a directory. Reading a pipe would wait for its writer."""
    if not path.is_file():
        raise _broken(path, "it is no file")


def _parse(path: Path, parse: Callable[[Path], _T]) -> _T:
    _check_file(path)
    try:
        return parse(path)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _broken(path, _fault_text(error)) from error
    except UserError as error:
        raise _broken(path, error.message) from error


def _fault_text(error: Exception) -> str:
    """Describe what a file lacks. Python's own messages name types, not the fault of the file."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return "it has another form than Paceline writes" if isinstance(error, TypeError | AttributeError) else str(error)


def _broken(path: Path, why: str) -> UserError:
    return UserError(f"{path} cannot be read: {shorten(why)}", "move it away and run again")


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the error for a file that cannot be written because of the disk or permissions."""
    fix = "make room or choose another `out` directory"
    return UserError(f"cannot write {path}: {error.strerror or error}", fix)
