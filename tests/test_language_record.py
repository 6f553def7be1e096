"""The answer on a language model is the row that meets the budget at the least perplexity."""

from __future__ import annotations

import json

from language_records import record, row
from paceline.reporting.text.language_text import answer_text


def test_the_answer_is_the_least_loss_that_meets_the_budget() -> None:
    assert record().best == row("whole", "int8", 2.0, 10.1)
    data = json.loads(json.dumps(record().to_json()))
    assert data["rows"][data["best"]]["weights"] == "int8"
    assert record(rows=(row("whole", "fp32", 4.0, 10.0),)).best is None
    assert "Nothing measured meets" in answer_text(record(rows=(row("whole", "fp32", 4.0, 10.0),)))
