"""The table of text formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.calibration.imports.quantities import QUANTITIES
from paceline.calibration.imports.text_formats import FORMATS, TextFormat

FILES = Path(__file__).parent / "files"


@pytest.mark.parametrize("form", FORMATS, ids=[f"{form.name}-{form.mark.strip()}" for form in FORMATS])
def test_a_row_is_whole(form: TextFormat) -> None:
    assert form.source and form.values.keys() <= QUANTITIES.keys()
    assert not form.needed or form.needed in form.values
    assert "step" in form.values
    text = "\n".join(path.read_text(errors="replace") for path in FILES.glob("*.*"))
    assert all(fact.mark in text and fact.pattern.search(text) for fact in form.facts if fact.name not in UNSEEN)
    lines = [line for line in text.splitlines() if form.mark in line]
    assert lines and (form.block or any(form.values[form.needed or "step"].read(line) for line in lines))


UNSEEN = {"micro_batch", "grad_accum", "framework", "device"}
"""Facts that a file of several lines need not have."""
