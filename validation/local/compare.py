"""Published runs of local steps over slow links next to Paceline's predictions.

    python validation/local/compare.py [--out FILE]

``published.toml`` has a row for each figure, with its source. No constant of Paceline was fitted to these rows.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paceline.cli import main as paceline

ROOT = Path(__file__).parents[2]
PUBLISHED = Path(__file__).with_name("published.toml")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A published figure next to its prediction.

    Attributes:
        predicted: None if the source does not state enough. ``error``: predicted over published, less 1.
    """

    id: str
    what: str
    published: float
    predicted: float | None
    error: float | None
    source: str
    note: str


@cache
def answer(command: str) -> dict[str, Any]:
    """Return the JSON of a command of ``paceline``, with paths from the repository's root."""
    words = [str(ROOT / word) if word.startswith("validation/") else word for word in shlex.split(command)]
    text = io.StringIO()
    with redirect_stdout(text):
        paceline([*words, "--json"])
    found: dict[str, Any] = json.loads(text.getvalue())
    return found


def predicted(row: dict[str, Any]) -> float | None:
    """Return the predicted figure of a row; None without a command."""
    if "command" not in row:
        return None
    found = answer(row["command"])
    step_s: float = found["step_time_s"]
    if row["what"] == "step_s":
        return step_s
    if row["what"] == "round_s":
        return float(row["every"] * step_s)
    other = answer(row["against"])
    if row["what"] == "bytes_ratio":
        return float(other["wire_bytes_per_device"] / found["wire_bytes_per_device"])
    alone_s: float = other["step_time_s"]
    return float(row["every"] * (step_s - alone_s))


def scored() -> Iterator[Scored]:
    """Yield every row with its prediction and its error."""
    for row in tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["row"]:
        value = predicted(row)
        error = None if value is None else value / row["published"] - 1
        yield Scored(
            id=row["id"],
            what=row["what"],
            published=row["published"],
            predicted=value,
            error=error,
            source=row["source"],
            note=row["note"],
        )


def main() -> None:
    """Print the table, and write it to a file if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the rows to this CSV file")
    options = parser.parse_args()
    rows = list(scored())
    for row in rows:
        value = "not predicted" if row.predicted is None else f"{row.predicted:.4g} ({row.error:+.0%})"
        print(f"{row.id:26} {row.what:12} {row.published:>8g}  {value:>20}  {row.note}")
    if options.out:
        with options.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    main()
