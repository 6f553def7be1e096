"""How every benchmark writes its results, one CSV row a run with date, commit and environment, and how summaries show them."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from paceline.record import environment

T = TypeVar("T")
WHERE = ("date", "commit", "cpu", "cores", "python", "torch")


def append(path: Path, columns: Sequence[str], row: Mapping[str, object]) -> None:
    """Add ``row`` (its ``columns``, then WHERE) to the file, with a header when it is new."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *WHERE])
        if fresh:
            writer.writeheader()
        where = environment()
        writer.writerow({**row, **{k: where[k] for k in WHERE}})


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, numbers as numbers: what a picture is drawn from without measuring again."""
    with path.open(newline="") as file:
        return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def show(
    about: str, read: Callable[[Path], T], table: Callable[[list[T]], str], picture: Callable[[list[T], Path], None]
) -> None:
    """A summary's command line: print the table of the files that are named; draw the picture if asked."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    contents = [read(path) for path in options.csv]
    print(table(contents))
    if options.picture:
        picture(contents, options.picture)
