"""Exports of experiment trackers: a column of step times, of rates, or of a clock with a column of steps.

Weights & Biases: exports of a panel (``Step``, ``RUN - METRIC``, each with ``__MIN`` and ``__MAX``) and of a run's history
(``_step``, ``_runtime`` and ``_timestamp`` in seconds). MLflow: the history of metrics (``key``, ``value``, ``step``,
``timestamp`` in milliseconds). TensorBoard: ``Wall time``, ``Step``, ``Value``, and the tags of an event file. Lightning's
``metrics.csv``. Columns may be separated by commas, semicolons (with decimal commas) or tabs.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from paceline.calibration.imports.event_file import read_scalars
from paceline.calibration.imports.json_runs import json_lines
from paceline.calibration.imports.measuring import Stated
from paceline.calibration.imports.quantities import MOST, parse_number
from paceline.calibration.imports.run_measurement import RunMeasurement
from paceline.calibration.imports.step_times import LEAST, MeasuredSteps
from paceline.calibration.imports.text_lines import open_text, unreadable
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
_TOKENS = re.compile(
    r"(?:train_)?(?:throughput_)?(?:tps|(?:tokens?|toks?)(?:_per_|_)(?:s|sec|secs|second))(?:_per_(?:gpu|device|chip|rank))?(?:_avg)?$"
)
_SAMPLES = re.compile(r"(?:train_)?(?:samples?|examples?|images?|imgs?|sequences?)_per_(?:s|sec|second)$")
_OF_A_DEVICE = re.compile(r"per_(?:gpu|device|chip|rank)|/device/|throughput\(tps\)")
_OF_EVALUATION = re.compile(r"(?:^|[ /_])(?:eval|evaluation|val|valid|validation|test)[/_]")
_KNOWN_TIMES = {"iteration-time": "s", "time_metrics/end_to_end(s)": "s"}
"""Step times under other names, and their units: Megatron-LM (training.py), torchtitan (components/metrics.py)."""
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
    """Columns of an export by role, under their names in the file; empty for a missing column.

    ``size``: the size of a step that a rate needs: ``global_batch``, ``tokens_per_step`` or ``device_tokens_per_step``.
    """

    step_time: str = ""
    time: str = ""
    step: str = ""
    rate: bool = False
    size: str = ""
    unit: str = ""


def read_export(
    path: Path, named: Mapping[str, str] | None = None, unit: str = "", stated: Stated | None = None
) -> RunMeasurement:
    """Read the steps of a CSV export.

    Args:
        named: columns of the file by role (``ROLES``). The others are detected.
        unit: unit of the step times or the clock, from ``UNITS``; empty: from the column's name.
        stated: sizes that the user states; a column of tokens or samples a second needs them.

    Raises:
        UserError: no column, several columns, or a column without a unit for the step time; a missing named column.
    """
    header, rows = _read_csv(path)
    return table_run(path.name, "CSV export", header, rows, named, unit, stated)


def read_json_table(
    path: Path, named: Mapping[str, str] | None = None, unit: str = "", stated: Stated | None = None
) -> RunMeasurement:
    """Read the steps of a history with one JSON object a line. Arguments and errors as of ``read_export``."""
    rows = [{name: str(value) for name, value in record.items()} for record in json_lines(path)][:MOST]
    header = list(dict.fromkeys(name for row in rows for name in row))
    return table_run(path.name, "history in JSON", header, rows, named, unit, stated)


def read_events(
    path: Path, named: Mapping[str, str] | None = None, unit: str = "", stated: Stated | None = None
) -> RunMeasurement:
    """Read the steps of a TensorBoard event file: its tags are the columns. Arguments and errors as of ``read_export``."""
    rows: dict[int, dict[str, str]] = {}
    for scalar in read_scalars(path):
        if len(rows) < MOST or scalar.step in rows:
            row = rows.setdefault(scalar.step, {"Wall time": repr(scalar.wall_s), "Step": str(scalar.step)})
            row[scalar.tag] = repr(scalar.value)
    if not rows:
        raise UserError(f"{path.name} has no scalars", "give an event file of a run that logs scalars, such as its loss")
    header = list(dict.fromkeys(name for row in rows.values() for name in row))
    return table_run(path.name, "TensorBoard event file", header, list(rows.values()), named, unit, stated)


def table_run(
    file: str,
    kind: str,
    header: Sequence[str],
    rows: Sequence[Mapping[str, str]],
    named: Mapping[str, str] | None = None,
    unit: str = "",
    stated: Stated | None = None,
) -> RunMeasurement:
    """Return the measurement in a table. Arguments and errors as of ``read_export``."""
    named = dict(named or {})
    for role in named:
        check_name("role of a column", role, ROLES)
    if unit:
        check_name("unit", unit, UNITS)
    for role, column in named.items():
        if column not in header:
            raise UserError(f"{file} has no column {column}", f"it has {_listing(header)}; name one: --column {role}=NAME")
    columns = _columns(file, header, rows, named, unit)
    basis = f"column {columns.step_time or columns.time}"
    if columns.step_time:
        found = (_number(row.get(columns.step_time, "")) for row in rows)
        values = [value for value in found if value is not None and value > 0]  # a row that is cut may hold 0
        size, fix = _size(columns, stated or Stated())
        if not size:
            why = f"{file}: column {columns.step_time} is a rate, and the size of a step is not known"
            rates = {_RATE_NAMES[columns.size]: float(np.median(values))} if values else {}
            return RunMeasurement(file=file, kind=kind, basis=basis, rates=rates, lacks=(why, fix))
        steps = (
            [size / value for value in values if value > 0]
            if columns.rate
            else [value * UNITS[columns.unit] for value in values]
        )
    else:
        basis += f" over {columns.step}"
        steps = _differences(rows, columns)
    measured = MeasuredSteps(source=f"{file}, {basis}", step_s=steps)
    return RunMeasurement(file=file, kind=kind, basis=basis, steps=measured)


_RATE_NAMES = {
    "global_batch": "samples_per_s",
    "tokens_per_step": "tokens_per_s",
    "device_tokens_per_step": "device_tokens_per_s",
}
"""Rates by the size of a step that they need."""


def _size(columns: _Columns, stated: Stated) -> tuple[float, str]:
    """Return the size of a step that a rate needs, 0 if it is not stated, and the options that state it."""
    if not columns.size:
        return 1.0, ""
    batch, length, world = stated.global_batch or 0, stated.seq_len or 0, stated.world_size or 0
    if columns.size == "global_batch":
        return float(batch), "give --global-batch"
    if columns.size == "tokens_per_step":
        return float(batch * length), "give --global-batch and --seq-len"
    return batch * length / world if world else 0.0, "give --global-batch, --seq-len and --cluster"


def _read_csv(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the header, and the columns of each row that may matter. A row with another number of cells is left out.

    Raises UserError for a file that cannot be read, is empty, or has no rows.
    """
    try:
        with open_text(path, newline="") as stream:
            first = stream.readline()
            separator = max(",;\t", key=first.count)
            names = [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
            rows = [dict(zip(names, cells, strict=True)) for cells in _cells(stream, separator, names)]
    except (OSError, EOFError, csv.Error) as error:
        raise unreadable(path, error) from error
    if not rows:
        raise UserError(f"{path.name} has a header and no rows")
    return _wide(names, rows)


def _cells(stream: Iterable[str], separator: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of each row; cells of columns that never matter are empty, which saves memory."""
    kept = [_matters(name) for name in names]
    if not any(kept):
        kept = [True] * len(names)
    for number, cells in enumerate(csv.reader(stream, delimiter=separator)):
        if len(cells) == len(names):
            if separator == ";":
                cells = [cell.replace(".", "").replace(",", ".") if cell.count(",") == 1 else cell for cell in cells]
            yield cells if number < MOST else [cell if keep else "" for cell, keep in zip(cells, kept, strict=True)]


def _matters(name: str) -> bool:
    folded = name.casefold()
    return folded in _CLOCKS or folded in _STEPS or folded in ("key", "metric", "value") or any(kind(name) for kind in _KINDS)


def _wide(header: list[str], plain: list[dict[str, str]]) -> tuple[list[str], list[dict[str, str]]]:
    """Pivot rows into one column per metric if the file has one row per metric (``key``, ``value``)."""
    key = next((name for name in ("key", "metric") if name in header and "value" in header), "")
    if not key:
        return header, plain
    metrics = list(dict.fromkeys(row[key] for row in plain))
    others = [name for name in header if name not in (key, "value")]
    return [*others, *metrics], [{**{name: row[name] for name in others}, row[key]: row["value"]} for row in plain]


def _columns(
    file: str, header: Sequence[str], rows: Sequence[Mapping[str, str]], named: Mapping[str, str], unit: str
) -> _Columns:
    """Find the columns of the step time. Raises UserError."""
    times = [named["step_time"]] if "step_time" in named else [] if "time" in named else _columns_like(header, rows, _is_time)
    rates = [] if times else _columns_like(header, rows, _is_rate)
    if len(times) > 1 or len(rates) > 1:
        raise _several(file, times or rates)
    if times:
        if "step_time" in named and (size := _rate_size(times[0])) is not None:
            return _Columns(step_time=times[0], rate=True, size=size, unit="s")
        measured = unit or _KNOWN_TIMES.get(times[0], "") or _unit(times[0])
        if not measured:
            raise UserError(f"{file}: column {times[0]} has no unit", "give --unit s or --unit ms")
        return _Columns(step_time=times[0], unit=measured)
    if rates:
        return _Columns(step_time=rates[0], rate=True, unit="s")
    folded = {name.casefold(): name for name in header}
    clock = named.get("time") or next((folded[name] for name in _CLOCKS if name in folded), "")
    step = named.get("step") or next((folded[name] for name in _STEPS if name in folded), "")
    if not clock or not step:
        for kind in (_is_token_rate, _is_sample_rate):
            if found := _columns_like(header, rows, kind):
                if len(found) > 1:
                    raise _several(file, found)
                return _Columns(step_time=found[0], rate=True, size=_rate_size(found[0]) or "", unit="s")
        lacks = "no column of step times, and no clock with a column of steps"
        raise UserError(f"{file} has {lacks}", f"it has {_listing(header)}; name one: --column step_time=NAME")
    measured = unit or _CLOCKS.get(clock.casefold(), "") or _unit(clock)
    if not measured and clock.casefold() == "timestamp":
        measured = "ms" if any((_number(row.get(clock, "")) or 0) > MILLISECONDS for row in rows) else "s"
    if not measured:
        raise UserError(f"{file}: column {clock} has no unit", "give --unit s or --unit ms")
    return _Columns(time=clock, step=step, unit=measured)


def _several(file: str, names: Sequence[str]) -> UserError:
    return UserError(f"{file} has several columns of step times: {', '.join(names)}", "name one: --column step_time=NAME")


def _rate_size(name: str) -> str | None:
    """Return the size of a step that a rate needs, empty for steps a second; None if the column is no rate."""
    if _is_rate(name):
        return ""
    if _is_sample_rate(name):
        return "global_batch"
    if _is_token_rate(name):
        return "device_tokens_per_step" if _OF_A_DEVICE.search(name.casefold()) else "tokens_per_step"
    return None


def _columns_like(header: Sequence[str], rows: Sequence[Mapping[str, str]], is_one: Callable[[str], bool]) -> list[str]:
    """Return the columns of a kind, except of evaluations and the range ends that Weights & Biases adds.

    Columns with one value, as of a summary, give way to others. Columns of one device give way to columns of all devices.
    """
    trained = [name for name in header if not name.endswith(("__MIN", "__MAX")) and not _OF_EVALUATION.search(name)]
    names = [name for name in trained if is_one(name)]
    least = LEAST if len(rows) > LEAST else 0
    filled = [name for name in names if sum(_number(row.get(name, "")) is not None for row in rows) >= least]
    of_all = [name for name in filled if not _OF_A_DEVICE.search(name.casefold())]
    return of_all if of_all and len(filled) > 1 else filled


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
    if name in _KNOWN_TIMES:
        return True
    return bool(words in _TIMES or _PER_STEP.fullmatch(words) or (ends and ends[1] in {*_TIMES, *_STEP_WORDS}))


def _is_rate(name: str) -> bool:
    return bool(_PER_SECOND.fullmatch(_words(name)))


def _is_token_rate(name: str) -> bool:
    return bool(_TOKENS.fullmatch(_words(name)))


def _is_sample_rate(name: str) -> bool:
    return bool(_SAMPLES.fullmatch(_words(name)))


_KINDS = (_is_time, _is_rate, _is_token_rate, _is_sample_rate)


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
    value = parse_number(text, grouped=True)
    return value if value == value else None


def _listing(header: Sequence[str]) -> str:
    """List some of the columns for an error."""
    return ", ".join(header[:8]) + (f" and {len(header) - 8} more" if len(header) > 8 else "")
