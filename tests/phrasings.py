"""Tables of phrasings of machines and networks, with what each means."""

from __future__ import annotations

import csv
from pathlib import Path

Row = dict[str, str]


def rows(name: str) -> list[Row]:
    """Return the rows of a table. Quotes are part of a phrase."""
    with (Path(__file__).parent / "hardware" / "phrases" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=";", quoting=csv.QUOTE_NONE))
