"""Reader of a file of jobs. Its form follows from its content, and values of columns may select rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from paceline.csv_rows import Row, check_parted, read
from paceline.errors import UserError, known_name, shorten, unknown
from paceline.scheduling.job import check_names
from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.forms import FORMS, READ, TraceForm
from paceline.scheduling.traces.logs.slurm_columns import known_words
from paceline.scheduling.traces.record import JobLog, LoggedJob
from paceline.scheduling.traces.trace import Trace, trace_of_log

_SHOWN = 8
_PRINTED = {"NAME QUEUE ADMITTED": "kueue", "NAME STATUS MINAVAILABLE": "volcano"}
"""Columns of the tables that ``kubectl get`` prints without ``-o yaml``, with the form that is read."""
_TEXTS = tuple(field.name for field in fields(LoggedJob) if field.type == "str")


def read_trace(path: str | Path, where: Mapping[str, str] | None = None) -> Trace:
    """Read the jobs of a file.

    Args:
        where: values by column, such as ``{"set": "1.0x", "workload": "1"}``. Only matching rows are read.

    Raises:
        UserError: a file of unknown form, an unknown column or value; several traces in one file and none chosen; a wrong cell
            of a form that people write, with its row and column; two jobs of one name; a log in which no job ran.
    """
    source = JobFile.read(path)
    form = form_of(source)
    if form.log is not None:
        return trace_of_log(_chosen_log(source, form, where or {}), form.example)
    assert form.read is not None and source.table is not None
    columns = source.table.header
    rows = _chosen(read(path, form.columns, source.table.delimiter), columns, where or {})
    for column in form.parts:
        values = list(dict.fromkeys(row.text(column) for row in rows))
        if len(values) > 1:
            raise UserError(
                f"{Path(path).name} holds {len(values)} traces by {column}: {_short_list(values)}",
                f"choose `where` {column}={values[0]}",
            )
    trace = form.read(rows)
    check_names(trace.jobs, trace.places)
    return replace(trace, form=form.name)


def read_log(path: str | Path, where: Mapping[str, str] | None = None) -> JobLog:
    """Read the log or the queue of a cluster as it states its jobs.

    Raises:
        UserError: a file of unknown form, or one that is no log.
    """
    return parse_log(JobFile.read(path), where)


def parse_log(source: JobFile, where: Mapping[str, str] | None = None) -> JobLog:
    """Read a log or a queue from a text. Errors as ``read_log``."""
    form = form_of(source)
    if form.log is None:
        raise UserError(
            f"{source.name} is no log of a cluster ({form.about})", f"give one that is written by {FORMS[1].example}"
        )
    return _chosen_log(source, form, where or {})


def form_of(source: JobFile) -> TraceForm:
    """Return the form of a file. Raises UserError that names the nearest one."""
    fitting = [form for form in FORMS if form.matches(source)]
    if not fitting:
        raise _unknown_form(source)
    return max(fitting, key=lambda form: len(form.columns))


def _unknown_form(source: JobFile) -> UserError:
    name = source.name
    if source.table is None:
        return UserError(f"{name} holds objects that are no jobs of a known form", f"files that are read: {READ}")
    columns = source.table.header
    for words, form_name in _PRINTED.items():
        if set(words.split()) <= set(columns):
            form = next(form for form in FORMS if form.name == form_name)
            what = f"{name} is a table of {form.about}, which lacks their devices and times"
            return UserError(what, f"write it with {form.example}")
    check_parted(columns, {column for form in FORMS for column in form.columns}, name)
    near = max(FORMS, key=lambda form: len(set(form.columns) & set(columns)) / max(len(form.columns), 1))
    missing = [column for column in near.columns if column not in columns]
    what = f"{name} has the columns of no trace ({shorten(', '.join(columns), 100)})"
    small = {column.casefold(): column for column in columns}
    renamed = [f"{small[column.casefold()]} as {column}" for column in missing if column.casefold() in small]
    if near.columns and len(renamed) == len(missing):
        return UserError(what, f"write {', '.join(renamed)}")
    if known_words(columns) > len(set(near.columns) & set(columns)):
        sacct = next(form for form in FORMS if form.name == "sacct")
        return UserError(what, f"the nearest form is {sacct.name} ({sacct.about}): write it with {sacct.example}")
    if not set(near.columns) & set(columns):
        return UserError(what, f"files that are read: {READ}")
    fix = f"the nearest form is {near.name} ({near.about}), which also has {', '.join(missing)}"
    return UserError(what, f"{fix}. Files that are read: {READ}")


def _chosen_log(source: JobFile, form: TraceForm, where: Mapping[str, str]) -> JobLog:
    """Return the log with the rows that ``where`` selects: by columns of a table, by fields of ``LoggedJob`` of objects."""
    assert form.log is not None
    if not where or source.table is None or form.name == "sacct_headless":
        log = form.log(source)
        for given, value in where.items():
            field = known_name("column", given, _TEXTS)
            jobs = tuple(job for job in log.jobs if getattr(job, field) == value)
            if not jobs:
                raise unknown(f"{field} of {source.name}", value, dict.fromkeys(getattr(job, field) for job in log.jobs))
            log = replace(log, jobs=jobs)
        return replace(log, form=form.name)
    rows, _ = source.table.rows()
    _chosen(rows, source.table.header, where)
    columns = {known_name("column", given, source.table.header): value for given, value in where.items()}
    return replace(form.log(source.selecting(columns)), form=form.name)


def _chosen(rows: list[Row], columns: Sequence[str], where: Mapping[str, str]) -> list[Row]:
    for given, value in where.items():
        column = known_name("column", given, columns)
        values = dict.fromkeys(row.text(column) for row in rows)
        if value not in values:
            raise unknown(f"{column} of {rows[0].file}" if rows else column, value, values)
        rows = [row for row in rows if row.text(column) == value]
    return rows


def _short_list(values: Sequence[str]) -> str:
    return ", ".join(values[:_SHOWN]) + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")
