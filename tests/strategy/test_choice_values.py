"""LegalValues of choices: legal ones are returned in one form, others are refused with what is legal."""

from __future__ import annotations

from typing import Any

import pytest

from facts import facts
from paceline.errors import UserError
from paceline.strategy.choices.choice_values import Bits, ByteSize, Compound, Flag, LegalValues, Name, RealNumber, WholeNumber

COLOURS = Name("colour", ("red", "blue"), {"crimson": "red"}, listed=("crimson",))


@pytest.mark.parametrize(
    ("values", "given", "legal"),
    [
        (WholeNumber("sheep"), 3, 3),
        (WholeNumber("sheep", 0), 0, 0),
        (Bits((0, 8)), 8, 8),
        (RealNumber(0.0, 2.0), 1, 1.0),
        (RealNumber(0.0, 2.0, optional=True), None, None),
        (ByteSize("bytes"), 7, 7),
        (Flag(), True, True),
        (COLOURS, "Crimson", "red"),
        (Name("colour", ("red",), optional=True), "", ""),
        (Compound(), {"a": 1}, {"a": 1}),
    ],
)
def test_a_legal_value(values: LegalValues, given: Any, legal: Any) -> None:
    checked = values.check(given, "x")
    assert checked == legal and type(checked) is type(legal)


@pytest.mark.parametrize(
    ("values", "given", "words"),
    [
        (WholeNumber("sheep"), 0, facts("0 sheep", "whole number", "1")),
        (Bits((0, 8)), 4, "x=4; give one of 0, 8"),
        (Bits((32, 16), "give 32 or 16"), True, "x=True; give 32 or 16"),
        (RealNumber(0.0, 2.0), 3, "x=3; give a number from 0 to 2"),
        (RealNumber(1, 1e308, fix="give 1.2"), float("inf"), "x=inf; give 1.2"),
        (ByteSize("bytes"), 0, "0 bytes"),
        (Flag(), 1, "x=1; give True or False"),
        (COLOURS, "green", "unknown colour 'green'; legal: red, blue, crimson"),
        (Name("colour", ("red",), exact=True), "Red", "unknown colour 'Red'"),
    ],
)
def test_an_illegal_value(values: LegalValues, given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        values.check(given, "x")


@pytest.mark.parametrize(
    ("values", "text", "value"),
    [
        (WholeNumber("sheep"), "3", 3),
        (Bits((0, 8)), "8", 8),
        (RealNumber(0.0, 2.0), "1.5", 1.5),
        (ByteSize("bytes"), "1MiB", 1 << 20),
        (Flag(), "Yes", True),
        (COLOURS, "Crimson", "red"),
    ],
)
def test_a_text(values: LegalValues, text: str, value: Any) -> None:
    assert values.parse(text, "x") == value
    with pytest.raises(UserError):
        values.parse("nothing", "x")
    with pytest.raises(UserError):
        Compound().parse(text, "x")
