"""Reader of a user's own CSV: a row per job, with columns named like the fields of ``Job``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import UserError, known_name, unknown
from paceline.scheduling.job import CHOICES, Job
from paceline.scheduling.traces.published import number, whole
from paceline.scheduling.traces.trace import Trace

COLUMNS = ("name", "arrival_s")
"""Required columns. Other fields of ``Job`` may follow."""


def _text(row: Row, column: str) -> str:
    return row.text(column)


def _choices(row: Row, column: str) -> frozenset[str]:
    try:
        return frozenset(known_name("choice", word.strip(), CHOICES) for word in row.text(column).split("+"))
    except UserError as error:
        raise UserError(f"{row.place}, column {column}: {error.message}", error.fix) from None


def _names(row: Row, column: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in row.text(column).split("+"))


_READERS: Mapping[str, Callable[[Row, str], Any]] = {
    "str": _text,
    "float": number,
    "int": whole,
    "frozenset[Choice]": _choices,
    "tuple[str, ...]": _names,
}
FIELDS: Mapping[str, Callable[[Row, str], Any]] = {field.name: _READERS[str(field.type)] for field in fields(Job)}
"""Reader of each column that may occur."""


def read_own(rows: Sequence[Row]) -> Trace:
    """Read jobs in their owner's words. Empty cells keep the default; ``+`` separates several values of a cell.

    Raises:
        UserError: an unknown column; a wrong cell, with its row and column.
    """
    for column in rows[0].values:
        if column not in FIELDS:
            raise unknown("column", column, FIELDS, "rename it, or leave it out of the file")
    return Trace.of_rows(rows, _job)


def _job(row: Row) -> Job:
    if not row.text("name"):
        raise row.wrong("name", "a name")
    given = {column: FIELDS[column](row, column) for column in row.values if row.text(column)}
    deadline = given.pop("deadline_s", math.inf)
    return Job(**given, deadline_s=deadline)
