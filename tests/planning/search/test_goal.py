"""A goal is read as it is typed; a limit is met with a probability."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts import facts
from paceline.errors import UserError
from paceline.planning import Goal, Space, parse_goal, plan
from paceline.planning.search.goal import KINDS, GoalKind, money
from paceline.reporting.text.planning_text import plan_screen
from paceline.workload import Workload
from prediction_toys import PRICES


def test_a_limit_comes_with_the_probability_of_meeting_it(toy: Workload, space: Space) -> None:
    """The middle is met with a half, the upper end of the 80 % range with nine tenths."""
    single = replace(space, clusters=space.clusters[-1:], batches=(512,), compressions=("dense",), exchanges=("allreduce",))
    free = plan(toy, single, Goal("fastest"), prices=PRICES).best
    assert free.meets is None
    for goal, chance, words in (
        (Goal("deadline", free.time_s * (1 + 1e-9)), 0.5, "50%"),
        (Goal("deadline", free.time_high_s), 0.9, "90%"),
        (Goal("budget", free.usd_high), 0.9, "90%"),
        (Goal("budget", 1e9), 1.0, "over 99%"),
    ):
        answer = plan(toy, single, goal, prices=PRICES)
        assert answer.best.meets == answer.to_json()["best"]["meets"] == pytest.approx(chance, abs=0.005)
        assert f"within {goal.amount(goal.limit)}: {words} likely" in plan_screen(answer).text()
    assert Goal("deadline", 10.0).chance(10.0, 8.0, 14.0) == 0.5 and Goal("deadline", 9.0).chance(10.0, 10.0, 10.0) == 0.0
    assert Goal("deadline", 8.0).chance(10.0, 8.0, 14.0) == pytest.approx(0.1, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quickest", "unknown goal 'quickest'"),
        ("deadline", "has no time"),
        ("deadline=soon", facts("time", "deadline=90min", "deadline=6h", "deadline=2d")),
        ("deadline=0m", "'0m' is not a positive time"),
        ("budget=much", "not an amount of dollars"),
        ("budget=-3", "not an amount of dollars"),
        ("fastest=3", "takes no value"),
    ],
)
def test_a_goal_that_is_none(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_goal(text)


def test_goals() -> None:
    assert parse_goal("deadline=6h") == Goal("deadline", 6 * 3600) and parse_goal("deadline=90min").limit == 5400
    assert parse_goal("deadline=30m").limit == 1800
    assert parse_goal("budget=$1,500") == Goal("budget", 1500)


AMOUNTS = st.floats(1e-3, 1e9)


@given(AMOUNTS, AMOUNTS, st.floats(0.01, 3))
def test_the_probability_falls_with_what_a_candidate_takes(limit: float, value: float, spread: float) -> None:
    goal = Goal("deadline", limit)
    low, high = math.exp(-spread), math.exp(2 * spread)
    chance, of_more = (goal.chance(amount, amount * low, amount * high) for amount in (value, 2 * value))
    assert chance is not None and of_more is not None and 0 <= of_more <= chance <= 1
    assert (chance >= 0.5) == (value <= limit)
    assert Goal("fastest").chance(value, value, value) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_made_small_is_not_what_is_limited(kind: GoalKind) -> None:
    time_s, usd = np.array([1.0, 2.0]), np.array([4.0, 3.0])
    goal = Goal(kind)
    assert goal.score(time_s, usd) is (usd if kind in ("cheapest", "deadline") else time_s)
    assert goal.limited(time_s, usd) is (usd if kind == "budget" else time_s)
    assert goal.needs_price == (kind != "fastest") and str(goal) == kind


@pytest.mark.parametrize(
    ("usd", "text"),
    [(1234567.8, "$1,234,568"), (100, "$100"), (99.994, "$99.99"), (0.01234, "$0.0123"), (math.nan, "unknown"), (0, "$0")],
)
def test_dollars_in_words(usd: float, text: str) -> None:
    assert money(usd) == text


def test_a_deadline_may_be_a_day() -> None:
    assert 0 < parse_goal("deadline=friday").limit <= 7 * 86400
    assert parse_goal("deadline=2099-12-01").limit > 86400
    with pytest.raises(UserError, match="deadline=6h"):
        parse_goal("deadline=someday")
