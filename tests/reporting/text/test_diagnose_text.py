"""The screen of a diagnosis."""

from __future__ import annotations

import pytest

import paceline
from paceline.reporting.text.diagnose_text import diagnosis_screen


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ("2 s", ("slower than it should be", "Prove it:", "score")),
        ("1 ms", ("faster than predicted", "may be misstated")),
        ("1.0 times slower", ("As fast as predicted",)),
    ],
)
def test_each_finding_has_its_words(measured: str, words: tuple[str, ...]) -> None:
    screen = diagnosis_screen(paceline.diagnose("gpt2", "8 A100", global_batch_size=96, measured=measured))
    text = screen.text()
    assert all(word in text for word in words)
    assert "\n" not in screen.brief_line()


def test_why_has_every_cause() -> None:
    diagnosis = paceline.diagnose("gpt2", "8 A100", global_batch_size=96, measured="2 s")
    text = " ".join(diagnosis_screen(diagnosis).text(200, why=True).split())
    assert all(cause.fix in text for cause in diagnosis.causes)


def test_a_question_that_does_not_fit_is_said() -> None:
    diagnosis = paceline.diagnose("llama-2-7b", "A100 40GB", global_batch_size=1, measured="5 s")
    assert "state what saves memory" in " ".join(diagnosis_screen(diagnosis).text().split())
