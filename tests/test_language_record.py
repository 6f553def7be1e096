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


def test_a_model_that_learned_the_text_is_compared_with_the_whole_one_after_as_many_tokens() -> None:
    rows = (*record().rows[:2], row("smaller", "fp32", 2.0, 9.0))
    made, learned = record(rows=rows), row("trained whole", "fp32", 4.0, 8.0)
    assert made.loss(rows[2]) is None and made.best == rows[1]
    assert "Nothing is removed" in answer_text(made)
    assert record(rows=(*rows, learned)).loss(rows[2]) == pytest.approx(1 / 8) and record(rows=(*rows, learned)).best == rows[1]
    better = record(rows=(*rows, row("trained whole", "fp32", 4.0, 9.0)))
    assert better.best == rows[2] and answer_text(better).startswith("Fewer bits alone meet decode=2x: (whole, int8)")
    worse = record(rows=(*rows, row("trained whole", "fp32", 4.0, 20.0)))
    assert worse.loss(rows[2]) == pytest.approx(-0.1)
    assert record(rows=rows, trained={"tokens": 0}).best == rows[2]
    assert "its loss is unknown" in answer_text(record(rows=(rows[0], rows[2])))
    assert record(random=True).loss(rows[2]) is None


def test_a_record_comes_back_and_other_data_are_refused() -> None:
    data = json.loads(json.dumps(record().to_json()))
    assert LanguageRecord.from_json(data) == record()
    for other in ({}, {**data, "version": 0}, {**data, "rows": [{}]}):
        with pytest.raises(UserError, match="record"):
            LanguageRecord.from_json(other)
