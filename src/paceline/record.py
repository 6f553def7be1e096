"""Metrics that a prediction and a measurement share, and the record of a measured run.

``Prediction`` and ``RunRecord`` both are ``Metrics``, so validating a prediction is a subtraction.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from paceline.tabular import Row, Tabular

SCHEMA = 1
_ROW = (
    "step_time_s",
    "low_s",
    "high_s",
    "samples_per_s",
    "compute_s",
    "exposed_comm_s",
    "wire_bytes_per_device",
    "compression_ratio",
    "memory_bytes",
    "bottleneck",
)
"""Metrics of a row, in this order."""
_MOST_DIGITS = 300  # of a whole number; a float holds none that is longer
_log = logging.getLogger("paceline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A bar of a timeline. ``lane`` is the resource: ``compute``, ``codec`` or ``network``, or ``wait`` if the device waits for
    another one. Times in seconds.
    """

    name: str
    lane: str
    start_s: float
    duration_s: float
    rank: int = 0

    @property
    def end_s(self) -> float:
        """End in seconds after the start of the step."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Metrics(Tabular):
    """One training step, predicted or measured.

    ``step_time_s = compute_s + exposed_comm_s``. Communication is ``comm_s`` on the network and ``codec_s``
    compressing; ``exposed_comm_s`` is the part of it that the backward pass does not hide.

    Attributes:
        step_time_s: seconds of one step (a measurement: the median). ``low_s`` to ``high_s`` is its range.
        compute_s: forward, backward and optimizer; of a pipeline with the wait for other stages.
        wire_bytes_per_device: bytes sent in one step by the device that sends most.
        compression_ratio: dense bytes / wire bytes over the same exchange, at least 1.
        memory_bytes: bytes that training needs on one device.
        bottleneck: the resource that most of the step waits for.
        assumptions: assumptions behind the numbers, in words.
        timeline: the step as events; empty if it was not kept.
    """

    workload: str
    strategy: Mapping[str, Any]
    step_time_s: float
    low_s: float
    high_s: float
    samples_per_s: float
    compute_s: float
    comm_s: float
    codec_s: float
    exposed_comm_s: float
    wire_bytes_per_device: int
    compression_ratio: float
    memory_bytes: float
    bottleneck: str
    assumptions: tuple[str, ...]
    timeline: tuple[Event, ...] = field(default=(), repr=False)

    def rows(self) -> tuple[Row, ...]:
        """Return one row with the metrics."""
        return ({"workload": self.workload, **{name: getattr(self, name) for name in _ROW}},)

    def to_json(self) -> dict[str, Any]:
        """Convert to a plain dict with ``schema`` and without the timeline, which goes to a trace file."""
        return {"schema": SCHEMA, **{k: v for k, v in asdict(self).items() if k != "timeline"}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a dict of ``to_json``. Keys of later schemas are ignored."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if k in ("assumptions", "curve", "stages") else v for k, v in data.items() if k in known
        }
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class RunRecord(Metrics):
    """Measurements of a run.

    Attributes:
        accuracy: share of the held-out samples classified right after the last epoch, 0 to 1.
        curve: one entry per epoch: ``epoch``, ``loss`` (training, mean), ``accuracy``, ``seconds``, and ``noise_scale``
            (samples; None if it was not measured or is not significant).
        nonfinite_steps: steps that went dense or were skipped because a gradient was NaN or infinite.
        skipped_steps: number of such steps that the optimizer (LARS, LAMB) skipped.
        recipe: the learning rates, as ``Recipe.to_json`` gives them; empty where they were not kept.
        batch_efficiency: cost of the batch by the noise scale, as ``batch_efficiency`` returns it; empty if it is not known.
        stages: ``batch``, first of the ``samples``, ``steps`` and ``step_time_s`` of each stage of a batch that grows, with
            ``predicted_s``; empty for a constant batch. The other metrics are those of the first stage's steps.
        histogram: counts of one layer's gradient as the codec saw it (original, clipped, ternary, averaged).
        cluster: cluster of the run, as ``dataclasses.asdict`` of the ``Cluster``; empty if it was not kept.
    """

    accuracy: float
    epochs: int
    seed: int
    steps: int
    nonfinite_steps: int
    curve: tuple[Mapping[str, Any], ...]
    environment: Mapping[str, Any]
    histogram: Mapping[str, Any] = field(default_factory=dict)
    cluster: Mapping[str, Any] = field(default_factory=dict)
    skipped_steps: int = 0
    recipe: Mapping[str, Any] = field(default_factory=dict)
    batch_efficiency: Mapping[str, float] = field(default_factory=dict)
    stages: tuple[Mapping[str, float], ...] = ()

    def rows(self) -> tuple[Row, ...]:
        """Return one row with the metrics and the results of the run."""
        return tuple({**row, "accuracy": self.accuracy, "epochs": self.epochs, "steps": self.steps} for row in super().rows())

    def append(self, path: Path) -> None:
        """Append this record to a JSONL file as one line, atomically. Raises OSError."""
        append_line(path, json.dumps(self.to_json()))


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text. Raises ValueError, also for nesting and whole numbers beyond Python's limits."""
    try:
        return json.loads(text, parse_int=_parse_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse_int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def read_lines(path: Path) -> list[tuple[int, Any]]:
    """Read the values of a JSONL file, each with its line number.

    A last line without its end is incomplete, because its writer was ended. It is skipped with a warning.

    Raises:
        ValueError: any other line that is no JSON, with its number; OSError.
    """
    *lines, last = path.read_bytes().split(b"\n")
    values: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                values.append((number, parse_json(line)))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    if last.strip():
        try:
            values.append((len(lines) + 1, parse_json(last)))
        except ValueError:
            _log.warning("%s: line %d is torn and left out; whoever wrote it was ended", path, len(lines) + 1)
    return values


def append_line(path: Path, line: str) -> None:
    """Append a line to a JSONL file. If that fails, as on a full disk, the file is as before. Raises OSError."""
    path.touch()
    with path.open("r+b", buffering=0) as file:
        before = file.read()
        last = before[before.rfind(b"\n") + 1 :]
        torn = len(last) if last and not _is_json(last) else 0  # after a torn line no reader would find this one
        end = len(before) - torn
        rest = (b"\n" if last and not torn else b"") + line.encode() + b"\n"
        try:
            file.truncate(end)
            file.seek(end)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(end)
            raise


def _is_json(text: bytes) -> bool:
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def environment(packages: Iterable[str] = ("numpy", "torch")) -> dict[str, Any]:
    """Return the conditions of a measurement: date, commit, machine, versions. For records and benchmark files."""
    from datetime import UTC, datetime

    from paceline.hardware.probe import cpu_name

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": _commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: _version(package) for package in packages},
    }


@functools.cache
def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"


@functools.cache
def _commit() -> str:
    """Return the commit that this process has loaded."""
    folder = Path(__file__).parent
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
    return git.stdout.strip() or "unknown"
