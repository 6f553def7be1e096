"""Waits of a process that is suspended."""

from __future__ import annotations

import pytest

from paceline.training.attach.waiting import SLICE_S, slices


@pytest.mark.parametrize("seconds", [0.0, 0.01, SLICE_S, 4.0, 12.34])
def test_short_waits_add_up(seconds: float) -> None:
    waits = list(slices(seconds))
    assert sum(waits) == pytest.approx(seconds) and all(0 < wait <= SLICE_S for wait in waits)


def test_time_in_which_the_process_was_suspended_does_not_count() -> None:
    clock = 0.0
    for number, seconds in enumerate(slices(4.0)):
        clock += 3600 if number == 3 else seconds
    assert clock == pytest.approx(3600 + 3.9)
