"""Rows of a table of jobs, from a file and the user's additions, and the table's file."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.calibration.imports.measuring import contradiction
from paceline.calibration.imports.run_files import read_run
from paceline.calibration.imports.run_measurement import RunFact
from paceline.calibration.imports.step_times import MeasuredSteps, summary
from paceline.calibration.observation import Observation
from paceline.calibration.records import COLUMNS, observation
from paceline.csv_rows import Row, read
from paceline.errors import UserError, unknown
from paceline.hardware.catalogue import device, is_device
from paceline.names import fold
from paceline.strategy.strategy import CHOICES

MUST = {
    "workload": "--workload",
    "device": "--cluster",
    "global_batch": "--global-batch",
    "precision": "--precision",
}
"""Required columns of a row, and the options that set them."""


_MODEL = re.compile(r"\b(?!hbm|sxm|gddr|\d+gi?b)[a-z]*\d+[a-z]*\b")
"""Word of a device's name with its model: a100, 4090, mi300x."""


class MissingFacts(UserError):
    """Error for a file that lacks required columns of a row."""


def read_steps(
    paths: Sequence[Path], *, columns: Mapping[str, str] | None = None, unit: str = "", global_batch: int | None = None
) -> MeasuredSteps:
    """Read the steps of a run. Arguments and errors as of ``read_run``; UserError too for a file without step times."""
    return read_run(paths, columns=columns, unit=unit, global_batch=global_batch).measured_steps


def job_row(steps: MeasuredSteps, given: Mapping[str, str], warmup: int | None = None) -> tuple[dict[str, str], Observation]:
    """Return the row and its observation.

    Args:
        given: columns by name.
        warmup: as for ``MeasuredSteps.steady``.

    Raises:
        UserError: a column that does not exist, one that is missing, one that the file states otherwise, a job that is
            impossible; or as ``MeasuredSteps.steady``.
    """
    for name in given:
        if name not in COLUMNS or name in ("step_s", "sync_s"):
            raise unknown("column of a job", name, [column for column in COLUMNS if column not in ("step_s", "sync_s")])
    for name, value in given.items():
        if value and name in steps.job and not _same(name, steps.job[name], value):
            raise contradiction(steps.source, name, RunFact(steps.job[name], steps.places.get(name, "")), value)
    steady = steps.steady(warmup)
    median, low, high = summary(steady.step_s)
    row = {**steps.job, **{name: value for name, value in given.items() if value}}
    missing = [name for name in MUST if not row.get(name)]
    if missing:
        options = ", ".join(MUST[name] for name in missing)
        names = [name.replace("_", " ") for name in missing]
        said = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        raise MissingFacts(f"{steps.source} does not say {said}", f"give {options}")
    if not row.get("devices_per_node"):
        of = f" of {steps.processes} processes" if steps.processes else ""
        raise UserError(f"{steps.source}{of} does not say how many devices a node has", "give --cluster '2x8 A100'")
    row |= {
        "step_s": f"{median:.6g}",
        "sync_s": "" if steps.sync_s is None else f"{min(steps.sync_s, median):.6g}",
        "#source": steps.source,
        "#steps": str(steady.mean_of or len(steady.step_s)),
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


def _same(name: str, stated: str, given: str) -> bool:
    """Return whether two cells of a column say the same. A device that the catalogue lacks is compared by its model."""
    if name == "device":
        if is_device(stated) and is_device(given):
            return device(stated) == device(given)
        models = [set(_MODEL.findall(text.casefold())) for text in (stated, given)]
        return stated.casefold() == given.casefold() or bool(models[0] & models[1]) or not all(models)
    try:
        return float(stated) == float(given)
    except ValueError:
        return _cell(name, stated) == _cell(name, given)


def _cell(name: str, text: str) -> object:
    """Return the value of a cell of a choice, by any of its names; folded text of another column."""
    item = next((item for item in CHOICES.values() if item.column == name), None)
    try:
        return item.values.from_argument(text) if item else fold(text)
    except UserError:
        return fold(text)


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
