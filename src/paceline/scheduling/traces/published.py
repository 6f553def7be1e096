"""Published traces: Philly (ATC 2019), workloads of Pollux (OSDI 2021) and Sia (SOSP 2023), Gavel (OSDI 2020), ElasticFlow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.csv_rows import Row
from paceline.errors import LARGEST_COUNT
from paceline.scheduling.job import Choice, Job
from paceline.scheduling.traces.trace import Trace

PHILLY_COLUMNS = ("job_id", "submit_time_s", "duration_s", "num_gpus", "vc")
WORKLOAD_COLUMNS = ("set", "workload", "job_id", "submit_time_s", "duration_s", "num_gpus", "model", "batch_size")
GAVEL_COLUMNS = ("trace", "job_id", "submit_time_s", "duration_s", "num_gpus", "model", "total_steps")
ELASTICFLOW_COLUMNS = (
    *("job_id", "submit_time_s", "duration_s", "num_gpus"),
    *("model", "batch_size", "total_steps", "deadline_s"),
)
ADAPTS: frozenset[Choice] = frozenset({"devices", "batch"})
ONE_DEVICE = frozenset({"ncf"})
"""Models that these simulators leave on one device under every policy."""


def read_philly(rows: Sequence[Row]) -> Trace:
    """Read rigid jobs with known devices and durations. Raises UserError naming row and column."""
    return Trace.of_rows(rows, lambda row: _rigid(row, row.text("vc")))


def read_workload(rows: Sequence[Row]) -> Trace:
    """Read jobs of a model and a batch that may change in devices and batch. Raises UserError naming row and column."""
    return Trace.of_rows(rows, _adaptive)


def _rigid(row: Row, virtual_cluster: str) -> Job:
    return Job(
        name=row.text("job_id"),
        arrival_s=number(row, "submit_time_s"),
        duration_s=number(row, "duration_s"),
        devices=whole(row, "num_gpus"),
        virtual_cluster=virtual_cluster,
    )


def _adaptive(row: Row) -> Job:
    model = row.text("model")
    return Job(
        name=row.text("job_id"),
        arrival_s=number(row, "submit_time_s"),
        duration_s=number(row, "duration_s"),
        devices=whole(row, "num_gpus"),
        model=model,
        batch=whole(row, "batch_size"),
        adapts=frozenset() if model in ONE_DEVICE else ADAPTS,
    )


def read_gavel(rows: Sequence[Row]) -> Trace:
    """Read rigid jobs of a model and a number of steps. Raises UserError naming row and column."""
    return Trace.of_rows(rows, _stepped)


def _stepped(row: Row) -> Job:
    return Job(
        name=row.text("job_id"),
        arrival_s=number(row, "submit_time_s"),
        duration_s=number(row, "duration_s"),
        model=row.text("model"),
        devices=whole(row, "num_gpus"),
        steps=number(row, "total_steps"),
    )


def read_elasticflow(rows: Sequence[Row]) -> Trace:
    """Read elastic jobs with deadlines; times count from the first arrival. Raises UserError naming row and column."""
    first = min(number(row, "submit_time_s") for row in rows)
    return Trace.of_rows(rows, lambda row: _due(row, first))


def _due(row: Row, first: float) -> Job:
    steps, devices, batch = row.whole("total_steps"), row.whole("num_gpus"), row.whole("batch_size")
    if not steps:
        raise row.wrong("total_steps", "a whole number above 0")
    if not devices:
        raise row.wrong("num_gpus", "a whole number above 0")
    arrival, due = number(row, "submit_time_s") - first, row.number_of("deadline_s")
    if due is not None and due - first <= arrival:
        raise row.wrong("deadline_s", "after its submit_time_s")
    return Job(
        name=row.text("job_id"),
        arrival_s=arrival,
        model=row.text("model"),
        devices=devices,
        batch=batch or 0,
        duration_s=number(row, "duration_s"),
        steps=float(steps),
        adapts=frozenset({"devices"}),
        deadline_s=math.inf if due is None else due - first,
    )


def number(row: Row, column: str) -> float:
    """Return the number in a cell. Raises UserError for no number or a negative one."""
    value = row.number_of(column)
    if value is None:
        raise row.wrong(column, "a number from 0 up")
    return value


def whole(row: Row, column: str) -> int:
    """Return the whole number in a cell. Raises UserError for no whole number from 1 up."""
    value = row.whole(column)
    if value is None:
        raise row.wrong(column, "a whole number from 1 up")
    if value > LARGEST_COUNT:
        raise row.wrong(column, f"a whole number from 1 to {LARGEST_COUNT:,}")
    return value
