"""Quantities of Kubernetes."""

from __future__ import annotations

import pytest

from paceline.scheduling.executors.kubernetes.quantity import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), (8, 8), ("7910m", 7.91), ("16Gi", 2**34), ("1.5k", 1500), ("1e3", 1000), ("2E", 2e18), ("1Ei", 2**60)],
)
def test_quantities(text: str | int, number: float) -> None:
    assert quantity(text) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize("text", ["", "x", "1q", "1 G", "m"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity(text)
