"""Jobs and measured speeds of ElasticFlow (ASPLOS 2023): the columns of its traces and of its throughputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.csv_rows import Row, read
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.traces.trace import Trace

JOB_COLUMNS = ("job_id", "submit_time_s", "duration_s", "num_gpus", "model", "batch_size", "total_steps", "deadline_s")
SPEED_COLUMNS = ("gpu_type", "model", "global_batch_size")
DEVICES: Mapping[str, str] = {"A100": "A100 SXM 40GB", "T4": "T4"}
"""Device of each type of the throughputs."""
SpeedTable = Mapping[int, float]
"""Steps a second by devices."""


def read_jobs(path: str | Path) -> list[Job]:
    """Jobs of a trace, in the order of the file. They may run on any number of devices; arrivals count from the first.

    Raises:
        UserError: a damaged row, with its column.
    """
    return list(read_elasticflow(read(path, JOB_COLUMNS)).jobs)


def read_elasticflow(rows: Sequence[Row]) -> Trace:
    """``read_jobs`` of rows that were read. Raises UserError naming row and column."""
    first = min(_given(row, "submit_time_s") for row in rows)
    return Trace.of_rows(rows, lambda row: _job(row, first))


def _given(row: Row, column: str) -> float:
    value = row.number_of(column)
    if value is None:
        raise row.wrong(column, "a number from 0 up")
    return value


def _job(row: Row, first: float) -> Job:
    steps, devices, batch = row.whole("total_steps"), row.whole("num_gpus"), row.whole("batch_size")
    if not steps:
        raise row.wrong("total_steps", "a whole number above 0")
    if not devices:
        raise row.wrong("num_gpus", "a whole number above 0")
    arrival, due = _given(row, "submit_time_s") - first, row.number_of("deadline_s")
    if due is not None and due - first <= arrival:
        raise row.wrong("deadline_s", "after its submit_time_s")
    return Job(
        name=row.text("job_id"),
        arrival_s=arrival,
        model=row.text("model"),
        devices=devices,
        batch=batch or 0,
        duration_s=_given(row, "duration_s"),
        steps=float(steps),
        adapts=frozenset({"devices"}),
        deadline_s=math.inf if due is None else due - first,
    )


def read_speeds(path: str | Path) -> dict[tuple[str, str, int], dict[int, float]]:
    """Steps a second by (device, model, batch over all devices), then by devices; what was not measured is left out.

    Raises:
        UserError: a damaged row, with its column.
    """
    rows = read(path, SPEED_COLUMNS)
    sizes = [column for column in rows[0].values if column.isdecimal()]
    if not sizes:
        raise UserError(f"{Path(path).name} has no column for a number of devices", "name these columns 1, 2, 4 and so on")
    tables = {}
    for row in rows:
        batch, device = row.whole("global_batch_size"), DEVICES.get(row.text("gpu_type"), row.text("gpu_type"))
        if batch is None:
            raise row.wrong("global_batch_size", "a whole number above 0")
        speeds = {int(size): speed for size in sizes if (speed := _speed(row, size))}
        if not speeds:
            raise UserError(f"{row.place}: it has no speed", "give steps a second in a column named by the number of devices")
        tables[device, row.text("model"), batch] = speeds
    return tables


def _speed(row: Row, size: str) -> float | None:
    return None if row.text(size).lower() == "nan" else row.positive(size)


def speeds_of(job: Job, tables: Mapping[tuple[str, str, int], SpeedTable], device: str) -> SpeedTable:
    """The job's own. Raises UserError where its model and batch were not measured."""
    key = (device, job.model, job.batch)
    if key not in tables:
        raise UserError(
            f"job {job.name!r}: {job.model} of batch {job.batch} was not measured on {device}",
            "leave the job out, or add a row",
        )
    return tables[key]


__all__ = ["DEVICES", "SpeedTable", "read_elasticflow", "read_jobs", "read_speeds", "speeds_of"]
