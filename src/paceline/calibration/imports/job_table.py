"""Rows of a table of jobs, from a file and the user's additions, and the table's file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.calibration.imports.exports import read_export
from paceline.calibration.imports.kineto import read_traces
from paceline.calibration.imports.logs import read_log
from paceline.calibration.imports.step_times import MeasuredSteps, summary
from paceline.calibration.observation import Observation
from paceline.calibration.records import COLUMNS, observation
from paceline.csv_rows import Row, read
from paceline.errors import UserError, unknown

MUST = {
    "workload": "--workload",
    "device": "--cluster",
    "global_batch": "--global-batch",
    "precision": "--precision",
}
"""Required columns of a row, and the options that set them."""


def read_steps(
    paths: Sequence[Path], *, columns: Mapping[str, str] | None = None, unit: str = "", global_batch: int | None = None
) -> MeasuredSteps:
    """Read a run's steps from profiler traces (``.json``, ``.json.gz``, or their directory), an export (``.csv``) or a log.

    Args:
        columns, unit: as for ``read_export``.
        global_batch: as for ``read_log``.

    Raises:
        UserError: no such file, several that are no traces, options of another kind of file; or as the readers raise.
    """
    files = [file for path in paths for file in (_traces_in(path) if path.is_dir() else [path])]
    traces = [file for file in files if file.name.endswith((".json", ".json.gz"))]
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is no file", "give a trace, a log or a CSV file")
    table = files[0].suffix == ".csv"
    if (columns or unit) and not table:
        raise UserError(f"{files[0].name} has no columns", "leave --column and --unit out: they are for CSV files")
    if traces:
        if len(traces) < len(files):
            raise UserError(f"{len(files)} files of different kinds", "give traces of the ranks of one job, or one other file")
        return read_traces(traces)
    if len(files) > 1:
        raise UserError(f"{len(files)} files that are no traces", "give one log or one CSV file")
    return read_export(files[0], columns, unit) if table else read_log(files[0], global_batch)


def _traces_in(path: Path) -> list[Path]:
    traces = sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))
    if not traces:
        raise UserError(f"{path} has no trace", "give a directory of .json or .json.gz files")
    return traces


def job_row(steps: MeasuredSteps, given: Mapping[str, str], warmup: int | None = None) -> tuple[dict[str, str], Observation]:
    """Return the row and its observation.

    Args:
        given: columns by name, which take precedence over the file's.
        warmup: as for ``MeasuredSteps.kept``.

    Raises:
        UserError: a column that does not exist, one that is missing, a job that is impossible; or as ``MeasuredSteps.kept``.
    """
    for name in given:
        if name not in COLUMNS or name in ("step_s", "sync_s"):
            raise unknown("column of a job", name, [column for column in COLUMNS if column not in ("step_s", "sync_s")])
    median, low, high = summary(kept := steps.kept(warmup))
    row = {**steps.job, **{name: value for name, value in given.items() if value}}
    missing = [name for name in MUST if not row.get(name)]
    if missing:
        options = ", ".join(MUST[name] for name in missing)
        raise UserError(f"{steps.source} does not say {' and '.join(missing)}", f"give {options}")
    if not row.get("devices_per_node"):
        of = f" of {steps.processes} processes" if steps.processes else ""
        raise UserError(f"{steps.source}{of} does not say how many devices a node has", "give --cluster '2x8 A100'")
    row |= {
        "step_s": f"{median:.6g}",
        "sync_s": "" if steps.sync_s is None else f"{min(steps.sync_s, median):.6g}",
        "#source": steps.source,
        "#steps": str(len(kept)),
        "#low_s": f"{low:.6g}",
        "#high_s": f"{high:.6g}",
    }
    row = {name: value for name, value in row.items() if value}
    seen = observation(Row(row, 1, 2, steps.source))
    if steps.processes and seen.cluster.world_size != steps.processes:
        raise UserError(
            f"{steps.source} is of {steps.processes} processes, the cluster has {seen.cluster.world_size} devices",
            "give the --cluster that it ran on",
        )
    return row, seen


def table_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Format rows as a table of jobs: the columns of a job in their order, then the remarks."""
    used = dict.fromkeys(name for row in rows for name in row)
    header = [*(name for name in COLUMNS if name in used), *(name for name in used if name not in COLUMNS)]
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def add_row(path: Path, row: Mapping[str, str]) -> int:
    """Add a row to the table in a file, which is created if missing. Returns the number of its rows.

    Raises:
        UserError: the file is no table of jobs, or cannot be written.
    """
    before = [dict(old.values) for old in read(path, ("workload", "step_s"))] if path.exists() else []
    try:
        path.write_text(table_text([*before, row]), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", "choose another place for the table") from error
    return len(before) + 1
