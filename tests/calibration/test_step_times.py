"""Which steps of a run count, and what they say."""

from __future__ import annotations

import pytest

from paceline.calibration.imports.step_times import MeasuredSteps, summary
from paceline.errors import UserError


def steps(*seconds: float) -> MeasuredSteps:
    return MeasuredSteps(source="a run", step_s=seconds)


@pytest.mark.parametrize(
    ("seconds", "warmup", "kept"),
    [
        ((9.0, 5.0, 1.0, 1.0, 1.1), None, (1.0, 1.0, 1.1)),
        ((1.0, 1.0, 1.0, 1.0), None, (1.0, 1.0, 1.0)),  # the first never counts where there are three
        ((1.0, 1.1), None, (1.0, 1.1)),
        ((9.0, 1.0, 9.0, 1.0, 1.0), None, (1.0, 9.0, 1.0, 1.0)),  # only those at the beginning
        ((9.0, 1.0, 1.0), 0, (9.0, 1.0, 1.0)),
        ((9.0, 1.0, 1.0, 2.0), 2, (1.0, 2.0)),
    ],
)
def test_the_warm_up_is_left_out(seconds: tuple[float, ...], warmup: int | None, kept: tuple[float, ...]) -> None:
    assert tuple(steps(*seconds).kept(warmup)) == kept


@pytest.mark.parametrize(
    ("seconds", "warmup", "said"),
    [
        ((), None, "0 steps, 0 after"),
        ((1.0,), None, "1 step, 1 after"),
        ((1.0, 2.0), 1, "1 after"),
        ((1.0, 0.0, 1.0), 0, "of 0 s"),
    ],
)
def test_too_few_steps_are_refused(seconds: tuple[float, ...], warmup: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        steps(*seconds).kept(warmup)


def test_the_summary_is_median_and_quartiles() -> None:
    assert summary([1.0, 2.0, 3.0, 4.0, 100.0]) == (3.0, 2.0, 4.0)
