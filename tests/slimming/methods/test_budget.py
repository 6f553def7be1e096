"""Budgets as a user writes them."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.slimming.methods.budget import Budget


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("latency=5ms", "latency", 0.005),
        ("speedup=3x", "speedup", 3.0),
        ("speedup=2.5", "speedup", 2.5),
        ("size=4MB", "size", 4e6),
        ("accuracy=-1pt", "accuracy", 1.0),
        ("accuracy=0.5", "accuracy", 0.5),
        ("decode=2x", "speedup", 2.0),
        ("prefill=50ms", "latency", 0.05),
    ],
)
def test_a_budget_is_read_and_written(text: str, kind: str, value: float) -> None:
    budget = Budget.parse(text)
    assert (budget.kind, budget.value) == (kind, value)
    assert Budget.parse(str(budget)) == budget
    assert budget.phase == (text.partition("=")[0] if text[0] in "dp" else "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3x", "budget '3x'"),
        ("speedup=1x", "a speed-up of '1x'"),
        ("speedup=fast", "a speed-up of 'fast'"),
        ("latency=5", "5"),
        ("size=0B", "size|0B"),
        ("accuracy=-200pt", "a loss of accuracy of '-200pt'"),
        ("latncy=5ms", "did you mean|latency"),
        ("decode=0.5x", "50% of the time give decode=2x"),
        ("speedup=0.8x", "80% of the time give speedup=1.25x"),
    ],
)
def test_anything_else_is_refused(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        Budget.parse(text)


def test_a_budget_in_seconds_or_bytes() -> None:
    assert Budget("speedup", 4.0).of(2.0) == 0.5 and Budget("latency", 0.1).of(2.0) == 0.1 and Budget("size", 10).of(20) == 10
    with pytest.raises(UserError, match=r"the whole network takes 50.0 ms: it meets latency=100ms already"):
        Budget("latency", 0.1).of(0.05)
    with pytest.raises(UserError, match="says no latency"):
        Budget("accuracy", 1.0).of(1.0)
