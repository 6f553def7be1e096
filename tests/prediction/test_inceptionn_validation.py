"""The command that compares with INCEPTIONN's published figures keeps its orderings."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "validation" / "inceptionn" / "compare.py"
DATA = tomllib.loads(SCRIPT.with_name("published.toml").read_text())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, cwd=ROOT, timeout=200)


def test_the_orderings_hold_and_the_errors_are_printed():
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILS" not in done.stdout and "Median error: step, WA " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_json_and_csv_have_every_row(tmp_path):
    out = tmp_path / "new" / "rows.csv"
    data = json.loads(run("--json", "--out", str(out)).stdout)
    assert len(data["rows"]) == 4 * 4
    row = next(r for r in data["rows"] if (r["net"], r["system"]) == ("alexnet", "INC+C"))
    assert row["published"] == pytest.approx(0.32 * 1.9635)
    assert row["low"] <= row["step"] <= row["high"]
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 16


@pytest.mark.parametrize("net", DATA["nets"])
def test_published_numbers_agree_with_each_other(net):
    facts = DATA["nets"][net]
    parts = dict(facts["seconds"])
    total = parts.pop("total")
    assert sum(parts.values()) == pytest.approx(total, rel=0.01)
    shares = {int(bits): share for bits, share in facts["bits"].items()}
    assert sum(shares.values()) == pytest.approx(100, abs=0.2)
    assert 32 / (sum(bits * share for bits, share in shares.items()) / 100) == pytest.approx(facts["ratio"], rel=0.01)
