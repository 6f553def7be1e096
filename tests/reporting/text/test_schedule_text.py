"""What the terminal shows of schedules."""

from __future__ import annotations

import math

import pytest

from paceline.reporting.text.schedule_text import (
    compare_screen,
    fleet_text,
    moment,
    schedule_screen,
    waited_longest,
    why_screen,
)
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.simulate.compare import compare
from paceline.scheduling.simulate.wait_reasons import why
from schedule_toys import job, simulated


@pytest.mark.parametrize(
    ("value", "text"), [(0, "00:00:00"), (3723.9, "01:02:03"), (2 * 86400 + 60, "2d 00:01:00"), (math.nan, "unknown")]
)
def test_moments(value: float, text: str) -> None:
    assert moment(value) == text


def test_nodes_in_words() -> None:
    assert fleet_text(Fleet.named("6x4xT4 + 3x8x2080Ti")) == "6 x 4 T4 + 3 x 8 RTX 2080 Ti"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    one, other = simulated(), simulated(policy="las")
    both = {"fifo": one, "las": other}
    for screen in (schedule_screen(one, "runs/x"), compare_screen(both, compare(both), "runs/x"), why_screen(why(one, "c"))):
        assert max(map(len, screen.text(width, why=True).splitlines())) <= width


def test_what_never_ended_stands_first() -> None:
    one = simulated()
    one.schedule.outcomes[2].end_s = math.nan
    assert schedule_screen(one, "x").text().startswith("1 of 3 jobs did not end.")
    assert "never ended" in why_screen(why(one, "c")).text()


def test_waits_are_listed_the_longest_first() -> None:
    assert waited_longest(simulated(), 9) == [("b", 90.0), ("c", 80.0)]
    assert "No job waited." in schedule_screen(simulated(job("a", 0, 1, 5)), "x").text()


def test_a_policy_with_no_common_job_says_so() -> None:
    one, other = simulated(), simulated(policy="las")
    for outcome in other.schedule.outcomes:
        outcome.end_s = math.nan
    both = {"fifo": one, "las": other}
    assert "no common job" in compare_screen(both, compare(both), "x").text()


def test_jobs_that_a_policy_removed_are_counted() -> None:
    one, other = simulated(), simulated(policy="las")
    other.schedule.outcomes[2].end_s, other.schedule.outcomes[2].removed = math.nan, "its deadline cannot be met"
    both = {"fifo": one, "las": other}
    screen = compare_screen(both, compare(both), "x")
    text = screen.text(100)
    assert (
        "las removed 1 of 3 jobs; its completion times are of the jobs that ended" in " ".join(text.split())
        and "fifo removed" not in text
    )
    assert "(2 of 3 jobs ended under both)" in text and "too few jobs" in text
    assert screen.brief.endswith(" of those under which the most jobs ended; las removed 1 of 3 jobs")
    assert "fifo is best in the mean" in screen.brief
