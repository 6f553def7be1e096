"""The metrics that a prediction and a measurement share, and the record of a measured run.

``Prediction`` and ``RunRecord`` both are ``Metrics``, so validating a prediction is a subtraction.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One bar of a timeline. ``lane`` is the resource: ``compute``, ``codec`` or ``network``. Times in seconds."""

    name: str
    lane: str
    start_s: float
    duration_s: float
    rank: int = 0

    @property
    def end_s(self) -> float:
        """When it ends, seconds after the step began."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """One training step, predicted or measured.

    ``step_time_s = compute_s + exposed_comm_s``. Of the time spent on communication (``comm_s`` on the network, ``codec_s``
    compressing), ``exposed_comm_s`` is the part that the backward pass does not hide.

    Attributes:
        step_time_s: seconds of one step (a measurement: the median). ``low_s`` to ``high_s`` is its range.
        compute_s: forward, backward and optimizer.
        wire_bytes_per_device: bytes sent in one step by the device that sends most.
        compression_ratio: dense bytes / wire bytes over the same exchange, at least 1.
        memory_bytes: bytes that training needs on one device.
        bottleneck: the resource that most of the step waits for.
        assumptions: what the numbers rest on, in words.
        timeline: the step as events; empty where it was not kept.
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

    def to_json(self) -> dict[str, Any]:
        """A plain dict with ``schema`` and without the timeline (that goes to a trace file)."""
        return {"schema": SCHEMA, **{k: v for k, v in asdict(self).items() if k != "timeline"}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_json``; keys of later schemas are ignored."""
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {k: tuple(v) if k == "assumptions" else v for k, v in data.items() if k in known}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class RunRecord(Metrics):
    """What a run measured.

    Attributes:
        accuracy: share of the held-out samples classified right after the last epoch, 0 to 1.
        curve: one entry per epoch: ``epoch``, ``loss`` (training, mean), ``accuracy``, ``seconds``, and ``noise_scale``
            (samples; None where it was not measured or says nothing).
        nonfinite_steps: steps passed through dense because a gradient was NaN or infinite.
        skipped_steps: those that the optimizer (LARS, LAMB) left out for that.
        recipe: the learning rates, as ``Recipe.to_json`` gives them; empty where they were not kept.
        batch_efficiency: what the batch cost by the noise scale, as ``batch_efficiency`` gives it; empty where it says nothing.
        histogram: counts of one layer's gradient as the codec saw it (original, clipped, ternary, averaged).
        cluster: what it ran on, as ``dataclasses.asdict`` of the ``Cluster``; empty where it was not kept.
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

    def append(self, path: Path) -> None:
        """Add this record as one line of a JSONL file."""
        with path.open("a") as file:
            file.write(json.dumps(self.to_json()) + "\n")


def read_records(path: Path) -> list[RunRecord]:
    """Every record of a JSONL file, oldest first."""
    return [RunRecord.from_json(json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def environment(packages: Iterable[str] = ("numpy", "torch")) -> dict[str, Any]:
    """Where a measurement was taken: date, commit, machine, versions. For records and benchmark files."""
    import os
    from datetime import UTC, datetime
    from importlib import metadata

    from paceline.hardware.probe import cpu_name

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "absent"

    def commit() -> str:
        folder = Path(__file__).parent
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True)
        return git.stdout.strip() or "unknown"

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }
