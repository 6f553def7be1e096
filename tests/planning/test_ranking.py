"""The best is the best of all; the front is what no other beats; of two as good the other quantity tells."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.planning import Goal, Space, TrainingTarget, parse_goal, plan
from paceline.planning.ranking import FRONT, PLAIN, TIE, RankedTable, distinct, front, ranked
from paceline.planning.space import Tally, candidates
from paceline.prediction import Predictor, predict
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import PRICES, make_cluster


def by_hand(toy: Workload, space: Space, work: TrainingTarget) -> list[tuple[float, float]]:
    """Time and dollars of every legal strategy, one predict after the other."""
    totals = []
    for machines, strategy in candidates(space, work, Tally()):
        p = predict(toy, machines, strategy)
        time = p.step_time_s * work.samples(strategy) / strategy.global_batch_size
        if p.fits:
            totals.append((time, time / 3600 * PRICES[machines.device.name] * machines.world_size))
    return totals


@pytest.mark.parametrize("text", ["fastest", "cheapest"])
def test_the_best_is_the_best_of_all(text: str, toy: Workload, space: Space) -> None:
    work = TrainingTarget(total=1e7)
    goal = parse_goal(text)
    answer = plan(toy, space, goal, work, prices=PRICES)
    every = by_hand(toy, space, work)
    column = 1 if goal.by_cost else 0
    best = answer.best.usd if goal.by_cost else answer.best.time_s
    assert best <= min(total[column] for total in every) * (1 + TIE) * (1 + PLAIN)
    assert answer.considered == len(every)


@pytest.mark.parametrize("text", ["fastest", "cheapest"])
def test_of_two_as_good_the_one_better_in_the_other_quantity_is_first(text: str, toy: Workload, space: Space) -> None:
    work, goal = TrainingTarget(total=1e7), Goal(text)
    pairs = [next(iter(candidates(space, work, Tally())))] * 3
    own, other = np.array([1.0, 1 + TIE / 2, 3.0]), np.array([30.0, 10.0, 1.0])
    time_s, usd = (other, own) if goal.by_cost else (own, other)
    table = RankedTable(toy, work, goal, {}, pairs, time_s, time_s, usd, np.ones(3, dtype=bool), Predictor())
    assert ranked(goal, table, Tally()) == [1, 0, 2]


def test_the_front_is_what_no_other_beats(toy: Workload, space: Space) -> None:
    work = TrainingTarget(total=1e7)
    front = plan(toy, space, Goal("fastest"), work, prices=PRICES).front
    every = by_hand(toy, space, work)
    assert len(front) > 1
    for choice in front:
        assert not any(t < choice.time_s * (1 - 1e-9) and d < choice.usd * (1 - 1e-9) for t, d in every)
    assert [choice.time_s for choice in front] == sorted(choice.time_s for choice in front)
    assert [choice.usd for choice in front] == sorted((choice.usd for choice in front), reverse=True)


def test_what_has_no_price_is_on_the_front_only_as_the_fastest(toy: Workload, space: Space) -> None:
    answer = plan(toy, space, Goal("fastest"), TrainingTarget(total=1e7), prices={"fast": 2.5})
    assert {choice.cluster.device.name for choice in answer.front} == {"fast"}
    other = plan(toy, space, Goal("fastest"), TrainingTarget(total=1e7), prices={"toy": 1.0})
    assert other.front[0].cluster.device.name == "fast"
    assert {choice.cluster.device.name for choice in other.front[1:]} == {"toy"}


def test_a_plainer_winner_says_what_it_gives_up(toy: Workload, space: Space) -> None:
    answer = plan(toy, replace(space, batches=()), Goal("fastest"), prices=PRICES)
    least = min(choice.time_s for choice in answer.front)
    behind = answer.best.time_s / least - 1
    assert ("preferred" in answer.best.reason) == (behind >= 0.0005)
    if behind >= 0.0005:
        assert f"within {behind:.1%} of the fastest" in answer.best.reason


POINTS = st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100) | st.just(math.nan)), min_size=1, max_size=40)


def table(toy: Workload, time_s: list[float], usd: list[float], goal: Goal, known: list[bool] | None = None) -> RankedTable:
    """As many strategies, with these seconds and dollars; all ``known`` if None."""
    members = [(make_cluster(1, 1), Strategy.of(world_size=1, global_batch_size=1))] * len(time_s)
    seconds, dollars = np.array(time_s), np.array(usd)
    mask = np.array([True] * len(time_s) if known is None else known)
    return RankedTable(toy, TrainingTarget(), goal, {}, members, seconds, seconds, dollars, mask, Predictor())


@given(points=POINTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_any_points_the_front_has_those_that_nothing_beats(toy: Workload, points: list[tuple[float, float]]) -> None:
    time_s, usd = ([pair[i] for pair in points] for i in (0, 1))
    chosen = front(table(toy, time_s, usd, Goal("fastest")))
    assert 1 <= len(chosen) <= FRONT and len(set(chosen)) == len(chosen)
    assert time_s[chosen[0]] == min(time_s)
    assert all(time_s[a] <= time_s[b] and not usd[a] < usd[b] for a, b in pairwise(chosen))
    for i in chosen[1:]:
        assert not any(t < time_s[i] and d < usd[i] * (1 - 1e-9) for t, d in points)


def test_a_long_front_keeps_both_ends(toy: Workload) -> None:
    count = 5 * FRONT
    chosen = front(table(toy, [1.0 + i for i in range(count)], [2.0 * count - i for i in range(count)], Goal("fastest")))
    assert len(chosen) == FRONT and (chosen[0], chosen[-1]) == (0, count - 1) and chosen == sorted(chosen)


def test_what_is_unknown_is_never_ranked(toy: Workload) -> None:
    tally = Tally()
    strategies = table(toy, [3.0, 1.0, 2.0], [1.0, 1.0, 1.0], Goal("deadline", 2.5), [True, False, True])
    assert ranked(strategies.goal, strategies, tally) == [2] and front(strategies) == [2]
    assert [(x.count, x.example) for x in tally.excluded()] == [(1, "give the factor as its penalty")]


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        (Goal("deadline", 1.0), "the nearest takes 30.0 s, 30 times as much"),
        (Goal("budget", 5.0), r"the nearest takes \$10\.00, 100% more"),
    ],
)
def test_the_nearest_is_named_where_nothing_meets(goal: Goal, words: str, toy: Workload) -> None:
    with pytest.raises(UserError, match=words):
        ranked(goal, table(toy, [30.0, 40.0], [20.0, 10.0], goal), Tally())


def test_of_strategies_that_differ_in_how_they_exchange_the_first_is_shown(toy: Workload, space: Space) -> None:
    strategies = candidates(replace(space, accumulations=(1, 2)), TrainingTarget(), Tally())
    first = distinct(range(len(strategies)), strategies)
    kinds = [
        (c.device.name, c.world_size, s.global_batch_size, s.precision, s.gradient_exchange.compression) for c, s in strategies
    ]
    assert len(first) < len(strategies) and [kinds[i] for i in first] == list(dict.fromkeys(kinds))
