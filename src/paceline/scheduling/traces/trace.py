"""What a file of jobs says, and how a form of such files is described."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.csv_rows import Row
from paceline.errors import UserError
from paceline.scheduling.job import Job


@dataclass(frozen=True)
class Trace:
    """Jobs, in the order of the file; ``places``: file and row of each; ``notes``: what was left out or counted otherwise, a
    sentence each."""

    jobs: tuple[Job, ...]
    places: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of_rows(cls, rows: Sequence[Row], make: Callable[[Row], Job]) -> Trace:
        """A job of each row. Raises UserError naming the row."""
        return cls(tuple(job_of_row(row, lambda row=row: make(row)) for row in rows), tuple(row.place for row in rows))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class TraceForm:
    """A form of files.

    Attributes:
        columns: those by which a header is told; a file is of the form with the most of them that it has all of.
        read: jobs of the rows that were chosen.
        parts: columns that divide a file into traces of their own: one value of each has to be chosen.
        about: where such files come from.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[Row]], Trace]
    parts: tuple[str, ...] = ()
    about: str = ""


def job_of_row(row: Row, make: Callable[[], Job]) -> Job:
    """``make()``, whose mistakes name the row."""
    try:
        return make()
    except UserError as error:
        if error.message.startswith(row.file):
            raise
        raise UserError(f"{row.place}: {error.message}", error.fix) from None


__all__ = ["Trace", "TraceForm", "job_of_row"]
