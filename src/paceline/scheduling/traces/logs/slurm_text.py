"""Readers of what ``sacct`` and ``squeue`` print: any columns, with bars or blanks, with or without a header."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.traces.content import JobFile, TextTable
from paceline.scheduling.traces.logs.log_times import is_wall_clock, parse_time
from paceline.scheduling.traces.logs.slurm_columns import SACCT, SQUEUE, fields_of, is_state
from paceline.scheduling.traces.logs.slurm_jobs import is_step, names_devices, slurm_job
from paceline.scheduling.traces.record import JobLog

_ID = re.compile(r"^\d+(?:_\d+|_\[.+\]?|\+\d+)?(?:\.[\w+]+)?$")
_TRES = re.compile(r"(?:^|,)(?:cpu|node|mem|billing|gres/\w+)[:=]")
_LIMIT = re.compile(r"^(?:\d+-)?\d{1,2}:\d{2}:\d{2}$|^UNLIMITED$|^Partition_Limit$")


def read_sacct(source: JobFile) -> JobLog:
    """Read what ``sacct`` printed. Raises UserError if it lacks the times of jobs."""
    assert source.table is not None
    log = _read(source, source.table, "sacct", fields_of(source.table.header))
    return log


def read_squeue(source: JobFile) -> JobLog:
    """Read what ``squeue`` printed. Raises UserError if it lacks the state of jobs."""
    assert source.table is not None
    return _read(source, source.table, "squeue", fields_of(source.table.header))


def headless(table: TextTable) -> dict[str, list[str]]:
    """Return the fields of a table of bars without a header, by their content; empty if it is none of Slurm.

    Columns are named by their numbers. A job id, a state and two times are needed. Times are submission, start and end, in this
    order. Two words before the times are user and account.
    """
    if table.delimiter not in ("|", ",", "\t") or not table.header or not _ID.match(table.header[0].strip()):
        return {}
    first = [cell.strip() for cell in table.header]
    names = [str(number) for number in range(len(first))]
    times = [name for name, cell in zip(names, first, strict=True) if _is_moment(cell)]
    states = [name for name, cell in zip(names, first, strict=True) if cell and is_state(cell)]
    if len(times) < 2 or not states:
        return {}
    order = {2: ("start", "end"), 3: ("submit", "start", "end"), 4: ("submit", "eligible", "start", "end")}
    fields: dict[str, list[str]] = {"id": [names[0]], "state": [states[0]]}
    for field, name in zip(order.get(len(times), order[3]), times, strict=False):
        fields[field] = [name]
    if tres := [name for name, cell in zip(names, first, strict=True) if _TRES.search(cell)]:
        fields["alloc_tres"] = [tres[-1]]
    if limits := [name for name, cell in zip(names, first, strict=True) if _LIMIT.match(cell)]:
        fields["limit"] = [limits[0]]
    used = {name for found in fields.values() for name in found}
    words = [name for name in names[: int(times[0])] if name not in used and first[int(name)]]
    for field, name in zip(("user", "account", "queue"), words, strict=False):
        fields[field] = [name]
    return fields


def read_headless(source: JobFile) -> JobLog:
    """Read what ``sacct -n`` printed."""
    assert source.table is not None
    table = source.table
    fields = headless(table)
    names = [str(number) for number in range(len(table.header))]
    whole = TextTable(tuple(names), table.delimiter, ((1, table.delimiter.join(table.header)), *table.lines), table.file)
    told = ", ".join(f"{field} {int(columns[0]) + 1}" for field, columns in fields.items())
    note = f"The file has no header. Columns were told by their content: {told}."
    return _read(source, whole, "sacct", fields, (note,))


def _is_moment(text: str) -> bool:
    """Return whether a cell is a time, or a word for none that sacct prints."""
    if text in ("Unknown", "None"):
        return True
    if text.isdecimal():
        return 9 <= len(text) <= 10
    return is_wall_clock(text)


def _read(
    source: JobFile, table: TextTable, form: str, fields: Mapping[str, Sequence[str]], notes: tuple[str, ...] = ()
) -> JobLog:
    check_times(fields, form, source.name)
    rows, skipped = table.rows()
    by_nodes = not names_devices(fields)
    if by_nodes:
        notes = (*notes, _counted_nodes(fields, form, source.name))
    made = []
    local = False
    for row in rows:
        cells = {field: _first(row, columns) for field, columns in fields.items()}
        if not is_step(cells):
            made.append(slurm_job(cells, row.place))
            local = local or is_wall_clock(cells.get("submit", "") or cells.get("start", ""))
    return JobLog.of(
        made,
        skipped,
        form=form,
        file=source.name,
        notes=notes,
        clock="local" if local else "utc",
        moment_s=_printed(source),
        nodes_as_devices=by_nodes,
    )


def check_times(fields: Mapping[str, Sequence[str]], form: str, name: str) -> None:
    """Raise UserError for a file of Slurm without job ids, or without states and times."""
    if "id" not in fields:
        raise UserError(f"{name} is what {form} prints, without job ids", f"write it with {SACCT}")
    if form == "squeue":
        if "state" not in fields:
            raise UserError(f"{name} is what squeue prints, without the states of jobs", f"write it with {SQUEUE}")
        return
    spans = {"start", "end", "elapsed", "elapsed_s", "planned"} & fields.keys()
    if "submit" in fields or "eligible" in fields:
        enough = len(spans) >= 1 and bool(spans - {"planned"})
    else:
        enough = len(spans & {"start", "end", "elapsed", "elapsed_s"}) >= 2
    if not enough:
        missing = [word for word, field in (("Submit", "submit"), ("Start", "start"), ("End", "end")) if field not in fields]
        raise UserError(f"{name} is what sacct prints, without {', '.join(missing)}", f"write it with {SACCT}")


def _counted_nodes(fields: Mapping[str, Sequence[str]], form: str, name: str) -> str:
    """Return the note that nodes count as devices. Raises UserError if the file has no nodes either."""
    column, command = ("AllocTRES", SACCT) if form == "sacct" else ("TRES_PER_NODE", SQUEUE)
    if "nodes" not in fields:
        raise UserError(
            f"{name} lacks the column {column} or {'AllocNodes' if form == 'sacct' else 'NODES'}", f"write it with {command}"
        )
    return f"Without {column} a node counts as one device ({fields['nodes'][0]})."


def _first(row: Row, columns: Sequence[str]) -> str:
    """Return the first filled cell of some columns."""
    return next((text for column in columns if (text := row.text(column))), "")


def _printed(source: JobFile) -> float:
    """Return the time in the first line, which ``squeue -l`` and ``squeue -i`` print; NaN if there is none."""
    line = source.lines[0].strip()
    try:
        return parse_time(datetime.strptime(line, "%a %b %d %H:%M:%S %Y").isoformat())
    except ValueError:
        return float("nan")
