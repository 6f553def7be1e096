"""The finding in words."""

from __future__ import annotations

import pytest

from paceline.planning.diagnose.diagnosis import Compared, times
from planning.diagnose.test_question import TWO


@pytest.mark.parametrize(("factor", "finding"), [(1.02, "as predicted"), (5.0, "slower"), (0.2, "faster")])
def test_finding_by_the_range(factor: float, finding: str) -> None:
    run = Compared(question="", text="x", measured_s=factor * TWO.step.step_time_s, prediction=TWO.step)
    assert run.finding == finding
    assert run.ratio == pytest.approx(factor)
    assert "predicted" in run.figures and "measured" in run.figures


def test_factors_in_words() -> None:
    assert (times(3.4), times(12.3)) == ("3.4 times", "12 times")
