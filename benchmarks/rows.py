"""How every benchmark writes its results: one CSV row a run, with date, commit and environment."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.record import environment

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
