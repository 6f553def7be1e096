"""Amounts as text."""

import pytest

from paceline.market.federation.currency import amount, priced


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.0, "0"), (1234.5, "1,234"), (-1234.5, "-1,234"), (0.01234, "0.0123"), (99.96, "100"), (99.9, "99.9")],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


def test_signs_and_currencies() -> None:
    assert (amount(5, sign=True), amount(-5, sign=True), amount(0, sign=True)) == ("+5", "-5", "0")
    assert priced(1200, "$") == "$1,200" and priced(-1200, "$") == "-$1,200"
    assert priced(1200, "job-hours") == "1,200 job-hours"
