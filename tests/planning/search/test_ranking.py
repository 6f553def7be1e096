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
from paceline.planning.search.candidates import candidates
from paceline.planning.search.ranking import PLAIN, TIE, RankedTable, distinct, front, ranked, tie_text
from paceline.planning.search.tally import Exclusions
from paceline.prediction import Predictor, predict
from paceline.strategy import Strategy
from paceline.workload import Workload
from prediction_toys import PRICES, make_cluster


def by_hand(toy: Workload, space: Space, work: TrainingTarget) -> list[tuple[float, float]]:
    """Time and dollars of every legal strategy, one predict after the other."""
    totals = []
    for machines, strategy in candidates(space, work, Exclusions()):
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
def test_of_two_as_good_the_one_better_in_the_other_quantity_is_first(text: str, toy: Workload) -> None:
    goal = Goal(text)
    own, other = [1.0, 1 + PLAIN / 2, 3.0], [30.0, 10.0, 1.0]
    answer = ranked(goal, on_nodes(toy, *((other, own) if goal.by_cost else (own, other)), goal), Exclusions())
    assert (answer.best, answer.least, answer.order) == (1, 0, (1, 0, 2))


def test_money_ties_are_broken_by_time(toy: Workload) -> None:
    """One device for 68 hours at $208, four for 17 at $213, eight for 9 at $250: the four. Their ratio may be off by more."""
    goal = Goal("cheapest")
    answer = ranked(goal, on_nodes(toy, [68.0, 17.0, 9.0], [208.0, 213.0, 250.0], goal), Exclusions(), most=8)
    assert answer.ties == (1, 0) and answer.others == (2,)


def test_a_difference_that_the_model_knows_is_no_tie(toy: Workload) -> None:
    """Three per cent that one strategy waits more, with all else equal: common errors cancel."""
    place, goal = make_cluster(1, 2), Goal("fastest")
    plain = Strategy.of(world_size=2, global_batch_size=64)
    pairs = [(place, plain.changed(compression="terngrad", exchange="allgather")), (place, plain)]
    seconds = np.array([1.0, 1 + 0.6 * TIE])
    same = RankedTable(toy, TrainingTarget(), goal, {}, [pairs[1]] * 2, *[seconds] * 3, np.ones(2, bool), Predictor())
    assert ranked(goal, same, Exclusions(), most=8).ties == (0,)
    within = np.array([1.0, 1 + PLAIN / 2])
    near = RankedTable(toy, TrainingTarget(), goal, {}, pairs, *[within] * 3, np.ones(2, bool), Predictor())
    assert pairs[1][1].detours < pairs[0][1].detours and ranked(goal, near, Exclusions(), most=8).ties == (1, 0), "the simpler"


def test_the_order_is_that_of_the_goal_after_the_ties_and_the_header_says_so(toy: Workload, space: Space) -> None:
    answer = plan(toy, replace(space, batches=(64, 128, 256)), Goal("cheapest"), TrainingTarget(total=1e7), prices=PRICES)
    ties = [choice for choice in answer.ranking if choice.tied]
    rest = [choice.usd for choice in answer.ranking if not choice.tied]
    assert list(answer.ranking[: len(ties)]) == ties and rest == sorted(rest)
    assert bool(answer.ties) == (len(ties) > 0) and answer.to_json()["ties"] == answer.ties
    least = min(choice.usd for choice in answer.ranking)
    assert all(choice.usd <= least * (1 + TIE) for choice in ties)


def test_a_best_without_ties_has_no_text(toy: Workload) -> None:
    two = on_nodes(toy, [1.0, 2.0], [1.0, 2.0], Goal("fastest"))
    assert tie_text(two, ranked(two.goal, two, Exclusions())) == ""


def test_the_front_is_what_no_other_beats(toy: Workload, space: Space) -> None:
    work = TrainingTarget(total=1e7)
    front = plan(toy, space, Goal("fastest"), work, prices=PRICES).front
    every = by_hand(toy, space, work)
    assert len(front) > 1
    for choice in front:  # of a tie on as many devices the simpler one may stand there
        assert not any(t < choice.time_s * (1 - PLAIN) and d < choice.usd * (1 - PLAIN) for t, d in every)
    assert [choice.time_s for choice in front] == sorted(choice.time_s for choice in front)
    assert [choice.usd for choice in front] == sorted((choice.usd for choice in front), reverse=True)


@pytest.mark.long
def test_what_has_no_price_is_on_the_front_only_as_the_fastest(toy: Workload, space: Space) -> None:
    answer = plan(toy, space, Goal("fastest"), TrainingTarget(total=1e7), prices={"fast": 2.5})
    assert {choice.cluster.device.name for choice in answer.front} == {"fast"}
    other = plan(toy, space, Goal("fastest"), TrainingTarget(total=1e7), prices={"toy": 1.0})
    assert other.front[0].cluster.device.name == "fast"
    assert {choice.cluster.device.name for choice in other.front[1:]} == {"toy"}


def test_a_plainer_winner_says_what_it_gives_up(toy: Workload, space: Space) -> None:
    answer = plan(toy, replace(space, batches=()), Goal("fastest"), prices=PRICES)
    assert answer.best.preference == "" or "a tie within" in answer.best.reason


POINTS = st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100) | st.just(math.nan)), min_size=1, max_size=40)


def table(toy: Workload, time_s: list[float], usd: list[float], goal: Goal, known: list[bool] | None = None) -> RankedTable:
    """As many strategies, with these seconds and dollars; all ``known`` if None."""
    members = [(make_cluster(1, 1), Strategy.of(world_size=1, global_batch_size=1))] * len(time_s)
    seconds, dollars = np.array(time_s), np.array(usd)
    mask = np.array([True] * len(time_s) if known is None else known)
    return RankedTable(toy, TrainingTarget(), goal, {}, members, seconds, seconds, dollars, mask, Predictor())


def on_nodes(toy: Workload, time_s: list[float], usd: list[float], goal: Goal) -> RankedTable:
    """The same on one node, two, three and so on."""
    members = [(make_cluster(1, n), Strategy.of(world_size=n, global_batch_size=64 * n)) for n in range(1, len(time_s) + 1)]
    return replace(table(toy, time_s, usd, goal), candidates=members)


@given(points=POINTS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_any_points_the_front_has_those_that_nothing_beats(toy: Workload, points: list[tuple[float, float]]) -> None:
    time_s, usd = ([pair[i] for pair in points] for i in (0, 1))
    chosen = front(table(toy, time_s, usd, Goal("fastest")), range(len(points)))
    assert len(chosen) >= 1 and len(set(chosen)) == len(chosen)
    assert time_s[chosen[0]] == min(time_s)
    assert all(time_s[a] <= time_s[b] and not usd[a] < usd[b] for a, b in pairwise(chosen))
    for i in chosen[1:]:
        assert not any(t < time_s[i] and d < usd[i] * (1 - 1e-9) for t, d in points)


def test_a_long_front_is_whole(toy: Workload) -> None:
    rows = range(60)
    long = table(toy, [1.0 + i for i in rows], [120.0 - i for i in rows], Goal("fastest"))
    assert front(long, rows) == [*rows]


def test_what_is_unknown_is_never_ranked(toy: Workload) -> None:
    tally = Exclusions()
    strategies = table(toy, [3.0, 1.0, 2.0], [1.0, 1.0, 1.0], Goal("deadline", 2.5), [True, False, True])
    assert ranked(strategies.goal, strategies, tally).order == (2,)
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
        ranked(goal, table(toy, [30.0, 40.0], [20.0, 10.0], goal), Exclusions())


def test_of_strategies_that_differ_in_how_they_exchange_the_first_is_shown(toy: Workload, space: Space) -> None:
    strategies = candidates(replace(space, accumulations=(1, 2)), TrainingTarget(), Exclusions())
    first = distinct(range(len(strategies)), strategies)
    kinds = [
        (c.device.name, c.world_size, s.global_batch_size, s.precision, s.gradient_exchange.compression.name)
        for c, s in strategies
    ]
    assert len(first) < len(strategies) and [kinds[i] for i in first] == list(dict.fromkeys(kinds))
