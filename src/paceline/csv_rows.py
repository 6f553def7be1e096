"""Rows of a CSV file of measurements, with one-line errors that name the file, the row and the column."""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UserError, shorten, shown
from paceline.names import did_you_mean

_LONGEST_HEADER = 1 << 16
_PARTED = {";": "semicolons", "\t": "tabs"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the file. ``number`` counts the rows below the header from 1, ``line`` the lines of the file."""

    values: Mapping[str, str]
    number: int
    line: int
    file: str

    def text(self, column: str) -> str:
        """Return the cell without surrounding blanks; empty for an empty cell or a missing column."""
        return self.values.get(column, "").strip()

    def number_of(self, column: str) -> float | None:
        """Return the number in the cell; None for an empty cell. Raises UserError for text or a negative number."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.wrong(column, "a number from 0 up")
        return value

    def positive(self, column: str) -> float | None:
        """Return the number in the cell; None for an empty cell or 0. Raises UserError as ``number_of``."""
        return self.number_of(column) or None

    def whole(self, column: str) -> int | None:
        """Return the whole number in the cell; None for an empty cell or 0. Raises UserError for anything else."""
        value = self.number_of(column)
        if value is not None and value != int(value):
            raise self.wrong(column, "a whole number")
        return int(value) if value else None

    @property
    def place(self) -> str:
        """File, row and line for an error."""
        return f"{self.file}, row {self.number} (line {self.line})"

    def wrong(self, column: str, expected: str) -> UserError:
        """Return the error for the cell in ``column``."""
        return UserError(f"{self.place}, column {column}: {shorten(self.text(column))!r} is not {expected}")


def header(path: str | Path) -> tuple[list[str], str]:
    """Return the columns in the first line of a file, and the separator: a comma or a bar.

    Raises:
        UserError: it cannot be read or is empty.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline(_LONGEST_HEADER)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", "give a CSV file") from None
    except UnicodeDecodeError:
        raise _not_utf8(Path(path).name) from None
    except ValueError as error:  # a path with a zero byte
        raise UserError(f"cannot read {shown(str(path))}: {error}", "give a CSV file") from None
    if not first.strip():
        raise UserError(f"{Path(path).name} is empty", "its first line names the columns")
    delimiter = "|" if first.count("|") > first.count(",") else ","
    return [column.strip() for column in first.strip().split(delimiter)], delimiter


def read(path: str | Path, columns: Sequence[str], delimiter: str = ",") -> list[Row]:
    """Read the rows of a CSV file that has at least ``columns``. Values separated by bars are not quoted.

    Raises:
        UserError: it cannot be read, is empty, lacks a column, or has a row with too many or too few values.
    """
    name = Path(path).name
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            if delimiter == ",":
                reader = csv.reader(stream, strict=True)
            else:
                reader = csv.reader(stream, strict=True, delimiter=delimiter, quoting=csv.QUOTE_NONE)
            names = [column.strip() for column in next(reader, [])]
            _check_header(names, columns, name)
            rows: list[Row] = []
            for values in reader:
                if not values:
                    continue
                if len(values) != len(names):
                    raise UserError(
                        f"{name}, row {len(rows) + 1} (line {reader.line_num}): {len(values)} values for {len(names)} columns"
                    )
                rows.append(Row(dict(zip(names, values, strict=True)), len(rows) + 1, reader.line_num, name))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", "give a CSV file") from None
    except UnicodeDecodeError:
        raise _not_utf8(name) from None
    except ValueError as error:  # a path with a zero byte
        raise UserError(f"cannot read {shown(str(path))}: {error}", "give a CSV file") from None
    except csv.Error as error:
        raise UserError(f"{name} is not a CSV file in UTF-8: line {reader.line_num}: {error}", "close its quotations") from None
    if not rows:
        raise UserError(f"{name} has a header and no rows")
    return rows


def check_parted(header: Sequence[str], columns: Collection[str], name: str) -> None:
    """Raise UserError for a header that separates some of ``columns`` by semicolons or tabs."""
    known = {column.casefold() for column in columns}
    for sign, signs in _PARTED.items():
        if len(header) == 1 and known.intersection(column.strip().casefold() for column in header[0].split(sign)[1:]):
            raise UserError(f"{name}: its columns are parted by {signs}", "part them by commas, here and in each row")


def _not_utf8(name: str) -> UserError:
    return UserError(f"{name} is not a CSV file in UTF-8", "save it in this encoding")


def _check_header(header: Sequence[str], columns: Sequence[str], name: str) -> None:
    if not header:
        raise UserError(f"{name} is empty", f"its first line names the columns: {', '.join(columns)}")
    missing = [column for column in columns if column not in header]
    if missing:
        check_parted(header, columns, name)
        near = [n for n in did_you_mean(missing[0], header, 1) if n.casefold().startswith(missing[0][:3].casefold())]
        hint = f"is {near[0]!r} meant?" if near and near[0] not in columns else f"the set has {', '.join(columns)}"
        raise UserError(f"{name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}", hint)
    doubled = sorted({column for column in header if header.count(column) > 1})
    if doubled:
        raise UserError(f"{name} has the column {doubled[0]} twice")
