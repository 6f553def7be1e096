"""Step times from records: ranks, restarts, clocks."""

from __future__ import annotations

import pytest

from paceline.calibration.imports.quantities import StepRecords
from paceline.calibration.imports.step_series import StepSeries, StepSizes, one_process, step_series


def series(*rows: dict[str, float], **sizes: float) -> tuple[StepSeries, tuple[str, ...]]:
    records = StepRecords()
    for row in rows:
        records.add(row)
    columns, notes = one_process(records)
    return step_series(columns, StepSizes(**sizes)), notes


def test_a_restart_leaves_its_first_step_out() -> None:
    steps = ((1, 9.0), (2, 1.0), (3, 1.1), (2, 8.0), (3, 1.0), (4, 1.2))
    found, _ = series(*({"step": n, "step_s": s} for n, s in steps))
    assert found.step_s == [9.0, 1.0, 1.1, 1.0, 1.2]
    assert found.notes == (
        "Its steps or its clock go back 1 time, as after a restart or an epoch: the first step after it is left out.",
    )


def test_of_several_ranks_the_lowest_counts() -> None:
    rows = [{"step": n, "rank": r, "step_s": n + r / 10} for n in (1, 2, 3) for r in (3, 1, 2)]
    found, notes = series(*rows)
    assert found.step_s == [1.1, 2.1, 3.1] and notes == ("It has lines of 3 processes: those of process 1 count.",)


def test_unnamed_ranks_are_joined() -> None:
    rows = [{"step": n, "step_s": n + late} for n in (1, 2, 3) for late in (0.0, 0.2)]
    found, notes = series(*(rows[i] for i in (0, 2, 1, 3, 5, 4)))  # interleaved, one ahead of the other
    assert found.step_s == pytest.approx([1.1, 2.1, 3.1]) and "each step 2 times" in notes[0]


def test_a_clock_of_whole_seconds_is_read_over_long_stretches() -> None:
    """Steps of 1.7 s under a clock that shows whole seconds: single differences are 1 or 2 s."""
    found, _ = series(*({"step": n, "clock_s": float(int(1.7 * n))} for n in range(200)))
    assert found.basis == "the clock of its lines" and min(found.step_s) > 1.6 and max(found.step_s) < 1.8


def test_a_clock_that_starts_again_divides_the_run() -> None:
    """A resumed run counts steps on, and its progress bar starts at 0 s."""
    first = [{"step": n, "clock_s": 10.0 * n} for n in range(9)]
    second = [{"step": 8 + n, "clock_s": 10.0 * n + 3} for n in range(1, 20)]
    found, _ = series(*first, *second)
    assert set(found.step_s) == {10.0}


def test_a_short_clock_gives_way_to_the_smoothed_rate() -> None:
    found, _ = series(*({"step": n, "clock_s": 2.0 * n, "smoothed_steps_per_s": 0.5} for n in range(4)))
    assert found.basis.startswith("the smoothed rate") and set(found.step_s) == {2.0}


@pytest.mark.parametrize(
    ("row", "sizes", "seconds"),
    [
        ({"samples_per_s": 32.0}, {"global_batch": 64}, 2.0),
        ({"tokens_per_s": 1e5}, {"tokens_per_step": 5e4}, 0.5),
        ({"device_tokens_per_s": 1e4}, {"device_tokens_per_step": 4e4}, 4.0),
        ({"step_s": 3.0, "samples_per_s": 32.0}, {"global_batch": 64}, 3.0),  # stated seconds come first
        ({"steps_per_s": 4.0}, {}, 0.25),
    ],
)
def test_rates_become_steps(row: dict[str, float], sizes: dict[str, float], seconds: float) -> None:
    assert series({"step": 1, **row}, {"step": 2, **row}, **sizes)[0].step_s == [seconds, seconds]


def test_zero_and_nan_are_no_steps() -> None:
    assert series({"step": 1, "step_s": 0.0}, {"step": 2}, {"step": 3, "step_s": 2.0})[0].step_s == [2.0]
