"""Reader of a user's own CSV: a row per job, with columns named like the fields of ``Job``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from paceline.csv_rows import Row
from paceline.errors import LARGEST_COUNT, UserError, known_name, unknown
from paceline.scheduling.job import CHOICES, Job
from paceline.scheduling.queues.slurm_values import slurm_bytes
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


def _resources(row: Row, column: str) -> tuple[tuple[str, float], ...]:
    """Return the amounts of a cell such as ``cpu=8+mem=64G+node=2``."""
    found = []
    for part in row.text(column).split("+"):
        name, _, amount = part.strip().partition("=")
        if name not in ("cpu", "mem", "node"):
            raise row.wrong(column, "amounts of cpu, mem and node, such as cpu=8+mem=64G+node=2")
        try:
            found.append((name, slurm_bytes(amount) if name == "mem" else float(int(amount))))
        except (ValueError, UserError):
            raise row.wrong(column, "amounts of cpu, mem and node, such as cpu=8+mem=64G+node=2") from None
    return tuple(found)


def _signed(row: Row, column: str) -> int:
    """Return the whole number in a cell, which may be negative."""
    text = row.text(column)
    if not text.removeprefix("-").isdecimal() or abs(int(text)) > LARGEST_COUNT:
        raise row.wrong(column, "a whole number")
    return int(text)


def _yes(row: Row, column: str) -> bool:
    word = row.text(column).casefold()
    if word not in WORDS:
        raise row.wrong(column, f"one of {', '.join(WORDS)}")
    return WORDS[word]


WORDS: Mapping[str, bool] = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False}
"""Words of a column that is true or false."""
_READERS: Mapping[str, Callable[[Row, str], Any]] = {
    "str": _text,
    "float": number,
    "int": whole,
    "frozenset[Choice]": _choices,
    "tuple[str, ...]": _names,
    "tuple[tuple[str, float], ...]": _resources,
    "bool": _yes,
    "Topology": _text,
}
FIELDS: Mapping[str, Callable[[Row, str], Any]] = {
    **{field.name: _READERS[str(field.type)] for field in fields(Job)},
    "priority": _signed,
}
"""Reader of each column that may occur."""
ALIASES: Mapping[str, tuple[str, float]] = {"time_limit_s": ("limit_s", 1.0), "gpu_milli": ("share", 0.001)}
"""Other names of columns, with the field and the factor to its unit."""


def read_own(rows: Sequence[Row]) -> Trace:
    """Read jobs in their owner's words. Empty cells keep the default; ``+`` separates several values of a cell.

    Raises:
        UserError: an unknown column; a wrong cell, with its row and column.
    """
    for column in rows[0].values:
        if column not in FIELDS and column not in ALIASES:
            raise unknown("column", column, FIELDS, "rename it, or leave it out of the file", few=len(FIELDS))
    return Trace.of_rows(rows, _job)


def _job(row: Row) -> Job:
    if not row.text("name"):
        raise row.wrong("name", "a name")
    given = {column: FIELDS[column](row, column) for column in row.values if column in FIELDS and row.text(column)}
    for column, (name, factor) in ALIASES.items():
        if column in row.values and row.text(column):
            if name in given:
                raise row.wrong(column, f"empty where {name} is given")
            given[name] = number(row, column) * factor
    deadline = given.pop("deadline_s", math.inf)
    return Job(**given, deadline_s=deadline)
