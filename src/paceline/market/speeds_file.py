"""Reads achieved and predicted throughput of jobs, for the audit of lenders."""

from __future__ import annotations

from pathlib import Path

from paceline.csv_rows import Row, read
from paceline.errors import UserError
from paceline.market.audit import MEASURED_SIGMA, JobSpeed

COLUMNS = ("job", "model", "lender", "achieved_per_s", "predicted_per_s")


def read_speeds(path: str | Path, sigma: float = MEASURED_SIGMA) -> list[JobSpeed]:
    """A job a row, in the order of their ends. A column ``sigma`` has the predictor's error of each, else it is ``sigma``.

    Raises:
        UserError: a damaged row, with its column; a throughput of 0.
    """
    return [_speed(row, sigma) for row in read(path, COLUMNS)]


def _speed(row: Row, sigma: float) -> JobSpeed:
    numbers = {name: row.positive(name) for name in ("achieved_per_s", "predicted_per_s")}
    for name, number in numbers.items():
        if number is None:
            raise row.wrong(name, "work a second, above 0")
    own = row.positive("sigma") if "sigma" in row.values else None
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


__all__ = ["COLUMNS", "read_speeds"]
