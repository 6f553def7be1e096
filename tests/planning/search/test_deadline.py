"""When something is due, as seconds from now."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.planning.search.deadline import DAYS, EVENING, seconds_until

MONDAY = datetime(2026, 11, 23, 9, 0, tzinfo=timezone(timedelta(hours=1)))
HOUR = 3600.0


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("3d", 72),
        ("36 hours", 36),
        ("2 weeks", 336),
        ("1.5w", 252),
        ("today", 8),
        ("tomorrow", 32),
        ("friday", 4 * 24 + 8),
        ("Fri", 4 * 24 + 8),
        ("monday", 8),
        ("2026-11-24", 32),
        ("2026-11-24T09:00", 24),
        ("2026-11-24T08:00+00:00", 24),
    ],
)
def test_times_as_people_say_them(text: str, hours: float) -> None:
    assert seconds_until(text, MONDAY) == hours * HOUR


def test_a_day_whose_evening_is_over_is_next_weeks() -> None:
    assert seconds_until("monday", MONDAY.replace(hour=17)) == 7 * 24 * HOUR


@given(st.sampled_from(DAYS), st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)))
def test_a_day_of_the_week_is_that_day_and_within_a_week(day: str, now: datetime) -> None:
    seconds = seconds_until(day, now)
    due = now + timedelta(seconds=seconds)
    assert 0 < seconds <= 7 * 24 * HOUR
    assert DAYS[due.weekday()] == day and due.time() == EVENING


@pytest.mark.parametrize("text", ["2026-11-22", "2026-11-23T08:00", "2026-13-01", "someday", "", "fr", "-3d", "today"])
def test_what_is_over_or_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        seconds_until(text, MONDAY.replace(hour=18))
