"""Figures of a page are found in order, in one paragraph, with their units; words may differ."""

from __future__ import annotations

import pytest

from page_figures import figures, says

PAGE = "Dense takes 1.1 s, TernGrad 0.28 s: 3.9 times as fast.\n\nBytes: 2,048 kB, 12 % fewer."


def test_figures_have_units() -> None:
    assert figures(PAGE) == ["1.1 s", "0.28 s", "3.9 times", "2,048 kB", "12 %"]


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("first 1.1 s, then 0.28 s", True),
        ("12 % less", True),
        ("first 0.28 s, then 1.1 s", False),
        ("1.1 ms", False),
        ("0.28 s and 12 %", False),
    ],
)
def test_a_page_says_figures_in_order_in_one_paragraph(expected: str, found: bool) -> None:
    assert says(PAGE, expected) == found


def test_a_sentence_without_figures_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no figure"):
        says(PAGE, "dense is slow")
