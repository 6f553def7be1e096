"""CSV files of experiment trackers: a column of step times, of rates, or of a clock with a column of steps.

Weights & Biases: exports of a panel (``Step``, ``RUN - METRIC``, each with ``__MIN`` and ``__MAX``) and of a run's history
(``_step``, ``_runtime`` and ``_timestamp`` in seconds). MLflow: the history of metrics (``key``, ``value``, ``step``,
``timestamp`` in milliseconds). TensorBoard: ``Wall time``, ``Step``, ``Value``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.csv_rows import Row, read
from paceline.errors import UserError, check_name

ROLES = ("step_time", "time", "step")
"""Roles of a column: the seconds of a step, a clock, and the number of the step."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
_STEP_WORDS = ("step", "iter", "iteration", "batch", "train_step")
_TIMES = frozenset(f"{word}_{what}" for word in _STEP_WORDS for what in ("time", "duration", "latency")) | {
    f"{before}time_per_{word}" for word in _STEP_WORDS for before in ("", "elapsed_")
}
_UNIT_WORDS = {"ms": "ms", "msec": "ms", "milliseconds": "ms", "us": "us", "s": "s", "sec": "s", "secs": "s", "seconds": "s"}
_ENDS_IN_UNIT = re.compile(r"(.*?)_+(ms|msec|milliseconds|us|s|sec|secs|seconds)$")
_PER_STEP = re.compile(r"(ms|s|sec|secs|seconds)_per_(?:it|step|iter|iteration|batch)$")
_PER_SECOND = re.compile(r"(?:train_)?(?:it|its|steps?|iters?|iterations?|batch|batches)_per_(?:s|sec|second)$")
_RATIO = re.compile(r"\b(ms|s|sec|seconds|its?|steps?|iters?|iterations?)/(it|step|iter|iteration|batch|s|sec|second)\b")
_STEPS = ("trainer/global_step", "train/global_step", "global_step", "step", "_step")
_CLOCKS = {
    "_runtime": "s",
    "relative time (process)": "s",
    "relative time": "s",
    "wall time": "s",
    "_timestamp": "s",
    "timestamp": "",
}
"""Clocks by name, the best first, and their units; empty: seconds or milliseconds since 1970, by their size."""
MILLISECONDS = 1e11
"""Times since 1970 above this are in milliseconds. In seconds it would be the year 5138."""


@dataclass(frozen=True)
class _Columns:
    """Columns of an export by role, under their names in the file; empty for a missing column."""

    step_time: str = ""
    time: str = ""
    step: str = ""
    rate: bool = False
    unit: str = ""


def read_export(path: Path, named: Mapping[str, str] | None = None, unit: str = "") -> MeasuredSteps:
    """Read the steps of an export.

    Args:
        named: columns of the file by role (``ROLES``). The others are detected.
        unit: unit of the step times or the clock, from ``UNITS``; empty: from the column's name.

    Raises:
            UserError: no column, several columns, or a column without a unit for the step time; a missing named column.
    """
    named = dict(named or {})
    for role in named:
        check_name("role of a column", role, ROLES)
    if unit:
        check_name("unit", unit, UNITS)
    rows = _wide(read(path, ()))
    header = list(rows[0])
    for role, column in named.items():
        if column not in header:
            raise UserError(f"{path.name} has no column {column}", f"it has {_listing(header)}; name one: --column {role}=NAME")
    columns = _columns(path, rows, named, unit)
    source = f"{path.name}, column {columns.step_time or columns.time}"
    if columns.step_time:
        values = [value for row in rows if (value := _number(row.get(columns.step_time, ""))) is not None]
        scale = UNITS[columns.unit]
        steps = [1 / value for value in values if value > 0] if columns.rate else [value * scale for value in values]
    else:
        source += f" over {columns.step}"
        steps = _differences(rows, columns)
    return MeasuredSteps(source=source, step_s=steps)


def _wide(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Pivot rows into one column per metric if the file has one row per metric (``key``, ``value``)."""
    plain = [{name: row.text(name) for name in row.values} for row in rows]
    key = next((name for name in ("key", "metric") if name in plain[0] and "value" in plain[0]), "")
    if not key:
        return plain
    metrics = list(dict.fromkeys(row[key] for row in plain))
    others = [name for name in plain[0] if name not in (key, "value")]
    empty = dict.fromkeys(metrics, "")
    return [{**{name: row[name] for name in others}, **empty, row[key]: row["value"]} for row in plain]


def _columns(path: Path, rows: Sequence[Mapping[str, str]], named: Mapping[str, str], unit: str) -> _Columns:
    """Find the columns of the step time. Raises UserError."""
    header = list(rows[0])
    times = [named["step_time"]] if "step_time" in named else [] if "time" in named else _columns_like(header, _is_time)
    rates = [] if times else _columns_like(header, _is_rate)
    if len(times) > 1 or len(rates) > 1:
        several = ", ".join(times or rates)
        raise UserError(f"{path.name} has several columns of step times: {several}", "name one: --column step_time=NAME")
    if times:
        if "step_time" in named and _is_rate(times[0]):
            return _Columns(step_time=times[0], rate=True, unit="s")
        measured = unit or _unit(times[0])
        if not measured:
            raise UserError(f"{path.name}: column {times[0]} has no unit", "give --unit s or --unit ms")
        return _Columns(step_time=times[0], unit=measured)
    if rates:
        return _Columns(step_time=rates[0], rate=True, unit="s")
    folded = {name.casefold(): name for name in header}
    clock = named.get("time") or next((folded[name] for name in _CLOCKS if name in folded), "")
    step = named.get("step") or next((folded[name] for name in _STEPS if name in folded), "")
    if not clock or not step:
        lacks = "no column of step times, and no clock with a column of steps"
        raise UserError(f"{path.name} has {lacks}", f"it has {_listing(header)}; name one: --column step_time=NAME")
    measured = unit or _CLOCKS.get(clock.casefold(), "") or _unit(clock)
    if not measured and clock.casefold() == "timestamp":
        measured = "ms" if any((_number(row[clock]) or 0) > MILLISECONDS for row in rows) else "s"
    if not measured:
        raise UserError(f"{path.name}: column {clock} has no unit", "give --unit s or --unit ms")
    return _Columns(time=clock, step=step, unit=measured)


def _columns_like(header: Sequence[str], is_one: Callable[[str], bool]) -> list[str]:
    """Return the columns of a kind, except the range ends that Weights & Biases adds."""
    return [name for name in header if is_one(name) and not name.endswith(("__MIN", "__MAX"))]


def _words(name: str) -> str:
    """Return a metric's name without its run and group, in small letters with one separator.

    ``RUN - perf/Step time (ms)`` becomes ``step_time_ms``, ``s/it`` becomes ``s_per_it``.
    """
    metric = name.rpartition(" - ")[2].casefold()
    metric = _RATIO.sub(r"\1_per_\2", metric)
    return re.sub(r"[^a-z0-9]+", "_", metric.rpartition("/")[2]).strip("_")


def _is_time(name: str) -> bool:
    words = _words(name)
    ends = _ENDS_IN_UNIT.fullmatch(words)
    return bool(words in _TIMES or _PER_STEP.fullmatch(words) or (ends and ends[1] in {*_TIMES, *_STEP_WORDS}))


def _is_rate(name: str) -> bool:
    return bool(_PER_SECOND.fullmatch(_words(name)))


def _unit(name: str) -> str:
    """Return the unit in a column's name; empty without one."""
    words = _words(name)
    unit = _PER_STEP.fullmatch(words) or re.fullmatch(r".*_(" + "|".join(_UNIT_WORDS) + ")", words)
    return _UNIT_WORDS[unit[1]] if unit else ""


def _differences(rows: Sequence[Mapping[str, str]], columns: _Columns) -> list[float]:
    """Return the mean step time between adjacent rows, in seconds. A clock that runs backwards, as in a resumed run, gives
    none."""
    moments: dict[float, float] = {}
    for row in rows:
        step, time = _number(row.get(columns.step, "")), _number(row.get(columns.time, ""))
        if step is not None and time is not None:
            moments.setdefault(step, time * UNITS[columns.unit])
    ordered = sorted(moments.items())
    return [(after - before) / (to - at) for (at, before), (to, after) in pairwise(ordered) if after > before]


def _number(text: str) -> float | None:
    """Parse the number in a cell; None for any other content."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _listing(header: Sequence[str]) -> str:
    """List some of the columns for an error."""
    return ", ".join(header[:8]) + (f" and {len(header) - 8} more" if len(header) > 8 else "")
