"""Traces of the PyTorch profiler (Kineto), in the form of Holistic Trace Analysis: one file a rank.

``torch.profiler.profile(..., on_trace_ready=...)`` writes an annotation ``ProfilerStep#N`` for each ``step()``, and kernels of
the category ``kernel``; those of NCCL and RCCL have nccl in their name. ``distributedInfo`` has the rank and the world's size.
Without ``step()``, a step is the time between the ends of two updates: PyTorch 2.13's optimizers annotate them
(``torch/optim/optimizer.py``, ``profile_hook_step``).
"""

from __future__ import annotations

import gzip
import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import numpy as np

from paceline.array_types import Array
from paceline.calibration.imports.json_stream import members
from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.errors import UserError

Intervals = Array
"""Rows of start and end, in microseconds."""
SOURCE = "PyTorch profiler"
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_UPDATE = "Optimizer.step#"
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_FIX = "write traces with torch.profiler.profile(schedule=..., on_trace_ready=...), and call its step() after each step"


@dataclass
class _RankTrace:
    """Content of one trace. Memory: 16 bytes for each kernel."""

    path: Path
    rank: int = -1
    world: int = 0
    devices: tuple[str, ...] = ()
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    updates: dict[str, list[float]] = field(default_factory=dict)
    work: array[float] = field(default_factory=lambda: array("d"))
    waits: array[float] = field(default_factory=lambda: array("d"))

    def add(self, name: str, value: Any) -> None:
        """Add one member of the trace."""
        if name == "traceEvents" and isinstance(value, dict):
            self._event(value)
        elif name == "distributedInfo" and isinstance(value, dict):
            self.rank, self.world = int(value.get("rank", -1)), int(value.get("world_size", 0))
        elif name == "deviceProperties" and isinstance(value, list):
            self.devices = tuple(str(device["name"]) for device in value if "name" in device)

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("ph") != "X" or "dur" not in event:
            return
        category, name = str(event.get("cat", "")).casefold(), str(event.get("name", ""))
        start = float(event["ts"])
        if category in _WORK:
            (self.waits if "nccl" in name.casefold() else self.work).extend((start, start + float(event["dur"])))
        elif not category.startswith("gpu") and (step := _STEP.match(name)):
            self.steps[int(step[1])] = (start, start + float(event["dur"]))
        elif not category.startswith("gpu") and name.startswith(_UPDATE):
            self.updates.setdefault(name, []).append(start + float(event["dur"]))

    def between_updates(self) -> dict[int, tuple[float, float]]:
        """Return the times between the updates of the first optimizer, for a trace without annotated steps."""
        ends = sorted(next(iter(self.updates.values()), ()))
        return dict(enumerate(pairwise(ends)))

    def sync_s(self) -> float | None:
        """Seconds of a step in which only kernels of NCCL ran; None without such kernels."""
        if not self.waits:
            return None
        begin, end = min(start for start, _ in self.steps.values()), max(end for _, end in self.steps.values())
        work, waits = (_union(_clip(kernels, begin, end)) for kernels in (self.work, self.waits))
        either = _union(np.concatenate([work, waits]))
        return float((_length(either) - _length(work)) / len(self.steps) / 1e6)


def read_traces(paths: Sequence[Path]) -> MeasuredSteps:
    """Read the steps of a job from the traces of some of its ranks: medians over the ranks, step by step.

    Raises:
        UserError: a file cannot be read, is no trace or has no steps; two are of one rank or of different jobs.
    """
    ranks = [_read(path) for path in paths]
    _check(ranks)
    shared = sorted(set.intersection(*(set(rank.steps) for rank in ranks)))
    if not shared:
        raise UserError(f"{' and '.join(rank.path.name for rank in ranks)} have no step in common", _FIX)
    steps = [median((rank.steps[n][1] - rank.steps[n][0]) / 1e6 for rank in ranks) for n in shared]
    waits = [wait for rank in ranks if (wait := rank.sync_s()) is not None]
    world, devices = ranks[0].world, ranks[0].devices
    job = {"device": devices[0]} if len(set(devices)) == 1 else {}
    if job and world == len(devices):  # otherwise the number of nodes is unknown
        job |= {"devices_per_node": str(world), "nodes": "1"}
    return MeasuredSteps(source=SOURCE, step_s=steps, sync_s=median(waits) if waits else None, job=job, processes=world)


def _read(path: Path) -> _RankTrace:
    rank = _RankTrace(path)
    try:
        with _opened(path) as stream:
            for name, value in members(stream, "traceEvents"):
                rank.add(name, value)
    except (OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", "give a trace") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path.name} is no Chrome trace: {error}", _FIX) from None
    rank.steps = rank.steps or rank.between_updates()
    if not rank.steps:
        raise UserError(f"{path.name} has no ProfilerStep: nothing says where a step ends", _FIX)
    return rank


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")  # type: ignore[return-value]
    return path.open(encoding="utf-8", errors="replace")


def _check(ranks: Sequence[_RankTrace]) -> None:
    named = [rank.rank for rank in ranks if rank.rank >= 0]
    doubled = sorted({rank for rank in named if named.count(rank) > 1})
    if doubled:
        raise UserError(f"two traces are of rank {doubled[0]}", "give one trace of each rank of one job")
    if len({rank.world for rank in ranks}) > 1:
        sizes = " and ".join(str(size) for size in sorted({rank.world for rank in ranks}))
        raise UserError(f"the traces are of jobs of {sizes} processes", "give traces of one job")


def _clip(kernels: array[float], begin: float, end: float) -> Intervals:
    """Clip intervals to the time between two moments."""
    pairs = np.clip(np.frombuffer(kernels, dtype=np.float64).reshape(-1, 2), begin, end)
    cut: Intervals = pairs[pairs[:, 1] > pairs[:, 0]]
    return cut


def _union(intervals: Intervals) -> Intervals:
    """Merge intervals into disjoint ones, in order."""
    if not len(intervals):
        return intervals
    ordered = intervals[np.argsort(intervals[:, 0])]
    reached = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.column_stack([ordered[first, 0], reached[last]])


def _length(intervals: Intervals) -> float:
    """Return the total of all intervals in microseconds."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())
