"""The benchmark of a slimmed decoder has a row for each contender."""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import slim_decoder  # noqa: E402


@pytest.mark.long
def test_each_contender_has_a_row(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    for name in slim_decoder.FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(gzip.compress(b"It was a dark and stormy night, and the rain fell. " * 1500))
    out = tmp_path / "rows.csv"
    options = ["--short", "--steps", "2", "--budget", "decode=1.1x", "--peers", "magnitude"]
    slim_decoder.main([*options, "--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(out)])
    rows = list(csv.DictReader(out.open()))
    assert {row["contender"] for row in rows} >= {"whole", "smaller", "magnitude"}
    assert all(float(row["perplexity"]) > 1 for row in rows)


def test_the_answer_on_the_rows_is_that_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    slim_decoder.main(["--summary", "--out", str(ROOT / "benchmarks" / "results" / "slim_decoder.csv")])
    said = capsys.readouterr().out
    assert "at the least loss: fewer bits (whole, int8), 2.28x per token, perplexity +0.1 %" in said
    page = " ".join((ROOT / "docs" / "slim.md").read_text().split())
    for line in ("less removed, int4: 2.21x per token, +3.6 %", "smaller, fp32: 2.21x per token, +7.5 %"):
        speed, _, loss = line.partition(": ")[2].partition(" per token, +")
        assert f"- {line}" in said and f"{loss} more at {speed}" in page
