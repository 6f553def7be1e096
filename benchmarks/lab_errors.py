"""Errors of today's predictions of the lab's steps, for hosts that share processors; it measures nothing.

    python benchmarks/lab_errors.py
    python benchmarks/lab_errors.py --out benchmarks/results/lab_errors.csv

Steps are those of ``speedup_lab.csv`` (stock DDP and TernGrad, 54 rows) and the dense aggregator of ``inceptionn_lab.csv`` (WA,
eight rows). ``then_s`` was predicted when they were measured, ``now_s`` is predicted by ``shared_hosts.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import lab_cases
from rows import append, read
from shared_hosts import RESULTS, shared_hosts

from paceline.workload import Workload

COLUMNS = ("network", "hosts", "link", "method", "condition", "step_s", "then_s", "then_error", "now_s", "now_error")
AGGREGATOR = {"compression": "dense", "exchange": "parameter_server"}
Row = dict[str, Any]


def predicted_rows() -> Iterator[Row]:
    """Yield each row with both predictions."""
    known = shared_hosts()
    for row in read(RESULTS / "inceptionn_lab.csv"):
        if row["system"] == "WA":
            table, hosts = Workload.named(row["network"]), row["hosts"]
            cores = min(1.0, known.processors / hosts)
            now = lab_cases.predicted(
                table, hosts, row["link"], AGGREGATOR, row["compute_s"], 0.0, overlap=False, codec_cores=cores
            ).step_time_s
            yield errors(row, "WA", row["condition"], now)
    for row in read(RESULTS / "speedup_lab.csv"):
        now = known.step(row["network"], row["hosts"], row["link"], row["compression"], row["compute_s"])
        yield errors(row, row["compression"], "", now)


def errors(row: Mapping[str, Any], method: str, condition: str, now: float) -> Row:
    """Return a row of the results."""
    same = {name: row[name] for name in ("network", "hosts", "link", "step_s")}
    then = row["predicted_s"]
    off = {"then_error": then / row["step_s"] - 1, "now_error": now / row["step_s"] - 1}
    found = {**same, "method": method, "condition": condition, "then_s": then, "now_s": now, **off}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}


def table(rows: Sequence[Row]) -> str:
    """Median, mean and largest error of both predictions, by method and hosts."""
    lines = ["| steps | rows | median then | now | mean then | now | largest then | now |", "|---|---|---|---|---|---|---|---|"]
    kinds = [("WA, 4 hosts", "WA", 4), *((f"{m}, {n} hosts", m, n) for m in ("dense", "terngrad") for n in (2, 4, 8))]
    for title, method, hosts in kinds:
        lines.append(line(title, [row for row in rows if (row["method"], row["hosts"]) == (method, hosts)]))
    return "\n".join([*lines, line("all", rows)])


def line(title: str, rows: Sequence[Row]) -> str:
    """Return a line of the table."""
    then, now = ([abs(row[f"{name}_error"]) for row in rows] for name in ("then", "now"))
    cells = [f"{100 * of(errors):.1f} %" for of in (median, fmean, max) for errors in (then, now)]
    return f"| {title} | {len(rows)} | {' | '.join(cells)} |"


def main() -> None:
    """Predict, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    o = parser.parse_args()
    rows = list(predicted_rows())
    for row in rows:
        if o.out:
            append(o.out, COLUMNS, row)
        if o.rows:
            print(*(row[name] for name in COLUMNS))
    print(table(rows))


if __name__ == "__main__":
    main()
