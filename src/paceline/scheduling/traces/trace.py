"""Jobs of a file, and the description of a form of such files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.job import Job


@dataclass(frozen=True)
class Trace:
    """Jobs of a file.

    Attributes:
        jobs: jobs in the order of the file. ``places``: file and row of each.
        notes: sentences on jobs that were left out or counted differently.
    """

    jobs: tuple[Job, ...]
    places: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[Row], make: Callable[[Row], Job]) -> Trace:
        """Build a trace with a job per row. Raises UserError naming the row."""
        return cls(tuple(job_of_row(row, lambda row=row: make(row)) for row in rows), tuple(row.place for row in rows))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class TraceForm:
    """Form of a file of jobs.

    Attributes:
        columns: columns that identify the form. If several forms fit a header, the one with the most columns is used.
        read: reader of the chosen rows.
        parts: columns that split a file into several traces. One value of each must be chosen.
        about: origin of such files.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[Row]], Trace]
    parts: tuple[str, ...] = ()
    about: str = ""


def job_of_row(row: Row, make: Callable[[], Job]) -> Job:
    """Return ``make()``, and add the row to its errors."""
    try:
        return make()
    except UserError as error:
        if error.message.startswith(row.file):
            raise
        raise UserError(f"{row.place}: {error.message}", error.fix) from None
