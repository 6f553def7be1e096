"""Published peaks of memory of divided and sharded runs against predicted ones.

    python benchmarks/memory_peaks.py

Rows and sources are in ``memory_peaks.toml``. ``first`` is the error of the prediction before anything was chosen in sight of
the row.
"""

from __future__ import annotations

import statistics
import tomllib
from collections import defaultdict
from pathlib import Path

from optimizer_peaks import peaks

ROWS = Path(__file__).with_suffix(".toml")


def main() -> None:
    """Print the table, and the median error of each group before and now."""
    rows = tomllib.loads(ROWS.read_text(encoding="utf-8"))
    print(f"{'row':<42}{'published GiB':>14}{'predicted GiB':>14}{'error':>8}{'first':>8}")
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for peak in peaks(ROWS):
        row = rows[peak.name]
        first = row["first"] / 100
        groups[row["group"]].append((peak.error, first))
        print(f"{peak.name:<42}{peak.published / 2**30:>14.2f}{peak.predicted / 2**30:>14.2f}{peak.error:>+8.1%}{first:>+8.1%}")
    for name, errors in groups.items():
        now, before = (statistics.median(abs(error) for error in of) for of in zip(*errors, strict=True))
        print(f"{name}: {len(errors)} rows, median of absolute errors {now:.1%}, first {before:.1%}")


if __name__ == "__main__":
    main()
