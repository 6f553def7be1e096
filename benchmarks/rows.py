"""How every benchmark writes its results, one CSV row a run with date, commit and environment, and how summaries show them."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

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


def show(
    about: str, read: Callable[[Path], T], table: Callable[[list[T]], str], picture: Callable[[list[T], Path], None]
) -> None:
    """A summary's command line: print the table of the files that are named; draw the picture if asked."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    found = [read(path) for path in options.csv]
    print(table(found))
    if options.picture:
        picture(found, options.picture)
