"""Published steps of preference and reward training: no verdict is wrong, and the page says the errors."""

from __future__ import annotations

import re
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from task_steps import FITS, rows

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_no_verdict_is_wrong_and_the_page_says_the_errors() -> None:
    found = list(rows())
    verdicts = [row.verdict for row in found if row.quantity == FITS]
    errors = [abs(row.error) for row in found if row.quantity != FITS]
    peaks = [abs(row.error) for row in found if row.quantity == "peak" or row.name.startswith("vllm")]
    assert "wrong" not in verdicts and max(peaks) < 0.16
    text = " ".join((ROOT / "docs" / "fine-tuning.md").read_text().split())
    said = re.search(
        r"of (\d+) verdicts on memory (\d+) are right and none is wrong; the median error of (\d+) .*? is (\d+) %", text
    )
    assert said and [int(number) for number in said.groups()] == [
        len(verdicts),
        verdicts.count("right"),
        len(errors),
        round(100 * statistics.median(errors)),
    ]
