"""Rank of the true cause in the diagnosis of public cases of a wrong speed.

    PACELINE_SHARED=FOLDER python benchmarks/diagnose_cases.py given open --out RESULTS/diagnose_cases.csv

RESULTS is benchmarks/results. ``diagnose_cases.csv`` here has the cases: the question as the thread states it, the measured
speed, and the causes that the thread names, of which one has to be found. ``given`` cases come from the reports that set the
task, ``open`` ones were looked at while causes and their frequencies were written down, ``sealed`` ones were split off at
random before any code and are run once, ``later`` ones were found after that and are run once. ``open2`` and ``sealed2``
are halves, by chance, of 24 that were found and written down before the next change of causes. A question's ``$USERS`` is
FOLDER/data/users; without it those cases are skipped.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from rows import append

from paceline.cli import main as paceline

HERE = Path(__file__).parent
FIRST = 3
COLUMNS = (
    "id",
    "split",
    "finding",
    "predicted_s",
    "measured_s",
    "ratio",
    "rank",
    "first",
    "second",
    "third",
    "causes",
    "error",
)


def cases(splits: list[str]) -> Iterator[Mapping[str, str]]:
    """Yield the cases of some splits."""
    with (HERE / "diagnose_cases.csv").open(newline="", encoding="utf-8") as file:
        yield from (row for row in csv.DictReader(file) if row["split"] in splits)


def answer(case: Mapping[str, str], users: str) -> tuple[dict[str, object], str]:
    """Return a case's diagnosis as JSON, or an error."""
    words = shlex.split(case["question"].replace("$USERS", users))
    words += ["--measured", case["measured"], *(("--also", case["also"]) if case["also"] else ())]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = paceline(["diagnose", *words, "--json"])
    return (json.loads(out.getvalue()), "") if code == 0 else ({}, err.getvalue().strip())


def row(case: Mapping[str, str], users: str) -> dict[str, object]:
    """Return the row of a case: the finding, the first three causes, and the rank of a true one; 0 without one."""
    data, error = answer(case, users)
    made: dict[str, object] = {"id": case["id"], "split": case["split"], "causes": case["causes"], "error": error}
    if not error:
        run, found = data["compared"][0], [cause["name"] for cause in data["causes"]]  # type: ignore[index]
        true = set(case["causes"].split("|"))
        hits = [number for number, name in enumerate(found, 1) if true & set(name.split("+"))]
        made |= {"finding": data["finding"], "rank": min(hits, default=0)}
        made |= {name: f"{run[name]:.4g}" for name in ("predicted_s", "measured_s", "ratio")}
        made |= dict(zip(("first", "second", "third"), found, strict=False))
    return {name: made.get(name, "") for name in COLUMNS}


def main() -> None:
    """Run the cases of some splits, print the ranks, and append the rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("split", nargs="+", choices=["given", "open", "sealed", "later", "open2", "sealed2"])
    parser.add_argument("--out", type=Path)
    o = parser.parse_args()
    shared = os.environ.get("PACELINE_SHARED", "")
    users = f"{shared}/data/users" if shared else ""
    rows = [row(case, users) for case in cases(o.split) if users or "$USERS" not in case["question"]]
    for one in rows:
        shown = (f"{one['id']:24}", f"{one['finding']:12}", f"{one['ratio']:>7}", f"rank {one['rank'] or '-'}")
        print(*shown, one["error"] or ", ".join(str(one[n]) for n in ("first", "second", "third")), "<-", one["causes"])
    for split in o.split:
        own = [one for one in rows if one["split"] == split]
        right = sum(bool(one["rank"]) and int(str(one["rank"])) <= FIRST for one in own)
        print(f"{split}: the true cause among the first {FIRST} in {right} of {len(own)}")
    if o.out:
        for one in rows:
            append(o.out, COLUMNS, one)


if __name__ == "__main__":
    main()
