"""Read achieved and predicted throughput of jobs for the audit of lenders."""

from __future__ import annotations

from pathlib import Path

from paceline.csv_rows import Row, read
from paceline.errors import UserError
from paceline.market.ledger.audit import MEASURED_SIGMA, JobSpeed

COLUMNS = ("job", "model", "lender", "achieved_per_s", "predicted_per_s")


def read_speeds(path: str | Path, sigma: float = MEASURED_SIGMA) -> list[JobSpeed]:
    """Read a job per row, in order of ends. Column ``sigma``: each job's prediction error; the default is ``sigma``.

    Raises:
        UserError: a damaged row, with its column; a throughput or a sigma of 0; a duplicate row.
    """
    first: dict[JobSpeed, Row] = {}
    for row in read(path, COLUMNS):
        speed = _speed(row, sigma)
        if speed in first:
            raise UserError(
                f"{row.place} repeats row {first[speed].number}", "leave one out: a job that counts twice is no proof"
            )
        first[speed] = row
    return list(first)


def _speed(row: Row, sigma: float) -> JobSpeed:
    numbers = {name: row.positive(name) for name in ("achieved_per_s", "predicted_per_s")}
    for name, number in numbers.items():
        if number is None:
            raise row.wrong(name, "work a second, above 0")
    own = row.number_of("sigma")
    if own == 0:
        raise row.wrong("sigma", "a number above 0")
    try:
        return JobSpeed(
            row.text("job"),
            row.text("model"),
            row.text("lender"),
            numbers["achieved_per_s"] or 0.0,
            numbers["predicted_per_s"] or 0.0,
            own or sigma,
        )
    except UserError as error:
        raise UserError(f"{row.place}: {error.message}", error.fix) from None
