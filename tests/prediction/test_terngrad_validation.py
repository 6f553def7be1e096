"""The command that compares with TernGrad's published figures keeps its orderings."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "validation" / "terngrad" / "compare.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, cwd=ROOT, timeout=200)


def test_the_orderings_hold_and_the_median_error_is_printed():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILS" not in done.stdout
    assert "Median error over 30 published rows: speed-up" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_json_and_csv_have_every_row(tmp_path):
    out = tmp_path / "new" / "rows.csv"
    data = json.loads(run("--json", "--out", str(out)).stdout)
    assert len(data["rows"]) == 2 * 3 * 10
    row = next(r for r in data["rows"] if (r["cluster"], r["net"], r["gpus"]) == ("ethernet", "alexnet", 512))
    assert round(row["published"], 2) == 3.87
    assert row["low"] <= row["speedup"] <= row["high"]
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert {"date", "commit", "cpu"} <= set(rows[0])


def test_an_ordering_that_fails_is_an_exit_code():
    done = run("--overlap")
    assert ("FAILS" in done.stdout) == (done.returncode == 1)
