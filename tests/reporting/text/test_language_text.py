"""The screen of a slimmed language model says which of smaller, fewer bits and both it is."""

from __future__ import annotations

import pytest

from language_records import record, row
from paceline.reporting.text.language_text import answer_text, language_screen


@pytest.mark.parametrize(
    ("best", "says"),
    [
        (row("whole", "int8", 2.0, 9.0), "fewer bits (whole, int8), 2.00x per token, perplexity -10.0 %"),
        (row("smaller", "fp32", 2.0, 9.0), "smaller (smaller, fp32)"),
        (row("smaller", "int8", 1.0, 9.0), "both (smaller, int8), 4.00x"),
    ],
)
def test_the_answer_names_what_was_done(best: object, says: str) -> None:
    made = record()
    assert says in answer_text(record(rows=(made.whole, best)))


def test_the_screen_has_a_row_for_each_file() -> None:
    text = language_screen(record(notes=("A note.",))).text()
    for part in (
        "whole, fp32",
        "smaller, int8",
        "meets it",
        "over it",
        "3 of 4 layers",
        "32 of 64",
        "A note.",
        "whole, int8 +1.0 %",
    ):
        assert part in text
    assert "which loses least is unknown" in answer_text(record(random=True))
    for tokens, says in ((0, "trained no; perplexity 30 without"), (1000, "perplexity 30 before")):
        text = " ".join(language_screen(record(trained={"tokens": tokens, "distill": 0.5})).text().split())
        assert says in text and "on the text that candidates are chosen by, which is not the table's" in text
