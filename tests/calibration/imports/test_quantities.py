"""Numbers, dates and times in text."""

from __future__ import annotations

import math

import pytest

from paceline.calibration.imports import quantities
from paceline.calibration.imports.quantities import StepRecords, elapsed_seconds, parse_number, stamp_seconds


@pytest.mark.parametrize(
    ("text", "grouped", "value"),
    [
        ("820.7", False, 820.7),
        ("8.1E+02", False, 810.0),
        ("41,520", True, 41520.0),
        ("1,048,576", False, 1048576.0),
        ("5,926.4", False, 5926.4),
        ("3,443", False, 3.443),  # a decimal comma, where the writer separates no thousands
        ("0,512", True, 0.512),
        ("41,5", True, 41.5),
    ],
)
def test_numbers(text: str, grouped: bool, value: float) -> None:
    assert parse_number(text, grouped) == value


@pytest.mark.parametrize("text", ["nan", "inf", "", "5,", "1.2.3", "12ab"])
def test_what_is_no_number_is_nan(text: str) -> None:
    assert math.isnan(parse_number(text))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0:00:32", 32),
        ("01:03", 63),
        ("1:00:01", 3601),
        ("1 day, 0:00:32", 86432),
        ("2 days, 1:00:00", 176400),
        ("0:00:01.5", 1.5),
    ],
)
def test_elapsed_times(text: str, seconds: float) -> None:
    assert elapsed_seconds(text) == seconds


def test_stamps() -> None:
    assert stamp_seconds("[2025-10-15 10:37:01,391] x") - stamp_seconds("2025-10-15T10:36:01 x") == pytest.approx(60.391)
    assert math.isnan(stamp_seconds("10:37:01")) and math.isnan(stamp_seconds("2025-13-45 10:00:00"))
    assert math.isnan(elapsed_seconds("?"))


def test_a_long_log_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantities, "MOST", 3)
    records = StepRecords()
    for step in range(9):
        records.add({"step": step})
    assert list(records.columns["step"]) == [0, 1, 2] and len(records) == 3
