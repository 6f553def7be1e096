"""The answer on a language model is the row that meets the budget at the least perplexity."""

from __future__ import annotations

import json

import pytest

from language_records import record, row
from paceline.errors import UserError
from paceline.language_record import LanguageRecord
from paceline.reporting.text.language_text import answer_text


def test_the_answer_is_the_least_loss_that_meets_the_budget() -> None:
    assert record().best == row("whole", "int8", 2.0, 10.1)
    data = json.loads(json.dumps(record().to_json()))
    assert data["rows"][data["best"]]["weights"] == "int8"
    assert record(rows=(row("whole", "fp32", 4.0, 10.0),)).best is None
    assert "Nothing measured meets" in answer_text(record(rows=(row("whole", "fp32", 4.0, 10.0),)))


def test_a_record_comes_back_and_other_data_are_refused() -> None:
    data = json.loads(json.dumps(record().to_json()))
    assert LanguageRecord.from_json(data) == record()
    for other in ({}, {**data, "version": 0}, {**data, "rows": [{}]}):
        with pytest.raises(UserError, match="record"):
            LanguageRecord.from_json(other)
