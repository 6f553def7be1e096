"""Reader of a file of jobs. Its form follows from its header, and values of columns may select rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.csv_rows import Row, check_parted, header, read
from paceline.errors import UserError, known_name, shorten, unknown
from paceline.scheduling.job import check_names
from paceline.scheduling.traces import published, sacct, user_csv
from paceline.scheduling.traces.trace import Trace, TraceForm

FORMS: tuple[TraceForm, ...] = (
    TraceForm("own", user_csv.COLUMNS, user_csv.read_own, about="a row a job, columns as the fields of a job"),
    TraceForm("sacct", sacct.COLUMNS, sacct.read_sacct, about=f"what {sacct.FORMAT} prints"),
    TraceForm("philly", published.PHILLY_COLUMNS, published.read_philly, about="Philly, rigid jobs with durations"),
    TraceForm(
        "workloads",
        published.WORKLOAD_COLUMNS,
        published.read_workload,
        ("set", "workload"),
        "workloads of Pollux and Sia, jobs of profiled models",
    ),
    TraceForm(
        "gavel", published.GAVEL_COLUMNS, published.read_gavel, ("trace",), "Gavel's physical traces, rigid jobs with steps"
    ),
    TraceForm(
        "elasticflow",
        published.ELASTICFLOW_COLUMNS,
        published.read_elasticflow,
        about="ElasticFlow, elastic jobs with deadlines",
    ),
)
"""Every form that can be read. A new form is one more entry."""
_SHOWN = 8


def read_trace(path: str | Path, where: Mapping[str, str] | None = None) -> Trace:
    """Read the jobs of a file.

    Args:
        where: values by column, such as ``{"set": "1.0x", "workload": "1"}``. Only matching rows are read.

    Raises:
        UserError: an unknown header, column or value; several traces in one file and none chosen; a wrong cell, with its row
            and column; two jobs of one name.
    """
    columns, delimiter = header(path)
    form = _form(columns, Path(path).name)
    rows = _chosen(read(path, form.columns, delimiter), columns, where or {})
    for column in form.parts:
        values = list(dict.fromkeys(row.text(column) for row in rows))
        if len(values) > 1:
            raise UserError(
                f"{Path(path).name} holds {len(values)} traces by {column}: {_short_list(values)}",
                f"choose `where` {column}={values[0]}",
            )
    trace = form.read(rows)
    check_names(trace.jobs, trace.places)
    return trace


def _form(columns: Sequence[str], name: str) -> TraceForm:
    fitting = [form for form in FORMS if set(form.columns) <= set(columns)]
    if not fitting:
        check_parted(columns, {column for form in FORMS for column in form.columns}, name)
        near = max(FORMS, key=lambda form: len(set(form.columns) & set(columns)) / len(form.columns))
        missing = [column for column in near.columns if column not in columns]
        small = {column.casefold(): column for column in columns}
        renamed = [f"{small[column.casefold()]} as {column}" for column in missing if column.casefold() in small]
        fix = f"the nearest form is {near.name} ({near.about}), which also has {', '.join(missing)}"
        raise UserError(
            f"{name} has the columns of no trace ({shorten(', '.join(columns), 100)})",
            f"write {', '.join(renamed)}" if len(renamed) == len(missing) else fix,
        )
    return max(fitting, key=lambda form: len(form.columns))


def _chosen(rows: list[Row], columns: Sequence[str], where: Mapping[str, str]) -> list[Row]:
    for given, value in where.items():
        column = known_name("column", given, columns)
        values = dict.fromkeys(row.text(column) for row in rows)
        if value not in values:
            raise unknown(f"{column} of {rows[0].file}", value, values)
        rows = [row for row in rows if row.text(column) == value]
    return rows


def _short_list(values: Sequence[str]) -> str:
    return ", ".join(values[:_SHOWN]) + (f" and {len(values) - _SHOWN} more" if len(values) > _SHOWN else "")
