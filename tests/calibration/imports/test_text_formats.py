"""The table of text formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.calibration.imports.json_runs import JSON_FORMATS
from paceline.calibration.imports.quantities import QUANTITIES
from paceline.calibration.imports.text_formats import FORMATS, TextFormat
from paceline.names import look_up
from paceline.strategy.frameworks.framework import ALIASES, FRAMEWORKS

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("form", FORMATS, ids=[f"{form.name}-{form.mark.strip()}" for form in FORMATS])
def test_a_row_is_whole(form: TextFormat) -> None:
    assert form.source and form.values.keys() <= QUANTITIES.keys()
    assert not form.needed or form.needed in form.values
    assert "step" in form.values
    text = "\n".join(path.read_text(errors="replace") for path in FILES.glob("*.*"))
    assert all(any(map(fact.read, text.splitlines())) for fact in form.facts if fact.name not in UNSEEN)
    lines = [line for line in text.splitlines() if form.mark in line]
    assert lines and (form.block or any(form.values[form.needed or "step"].read(line) for line in lines))


def test_frameworks_are_those_that_predictions_take() -> None:
    frameworks = {form.framework for form in (*FORMATS, *JSON_FORMATS)} - {""}
    assert {name for name in frameworks if not look_up(name, FRAMEWORKS, ALIASES)} == WITHOUT_PREDICTION


WITHOUT_PREDICTION = {"composer", "llm.c", "nanochat", "olmo", "torchvision"}
"""Frameworks that no prediction has a table for."""
UNSEEN = {"micro_batch", "grad_accum", "framework", "device", "context", "pipeline"}
"""Facts that a file of several lines need not have."""
