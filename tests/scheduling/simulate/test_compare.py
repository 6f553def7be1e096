"""Paired differences, their intervals, and policies in several processes."""

from __future__ import annotations

import math
from multiprocessing import get_context

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.simulate.compare import best, compare, paired, run_policies
from paceline.scheduling.simulate.scenario import Scenario
from paceline.scheduling.simulate.simulated import SimulatedSchedule
from paceline.scheduling.speeds.predicted_jobs import Predictions
from schedule_toys import AT_ONCE, FOUR, JOBS, job, simulated

MANY = tuple(job(f"j{n}", 5.0 * n, 1 + n % 4, 20.0 + 37 * (n % 7)) for n in range(40))


def shifted(base: SimulatedSchedule, by: float) -> SimulatedSchedule:
    other = simulated(*MANY)
    for mine, theirs in zip(other.schedule.outcomes, base.schedule.outcomes, strict=True):
        mine.end_s = theirs.end_s + by
    return other


def test_the_same_schedule_differs_by_nothing() -> None:
    base = simulated(*MANY)
    (pair,) = compare({"fifo": base, "again": simulated(*MANY)})
    assert (pair.difference_s, pair.low_s, pair.high_s, pair.ratio, pair.sooner) == (0, 0, 0, 1, 0) and not pair.settled


def test_a_constant_difference_has_no_width() -> None:
    base = simulated(*MANY)
    pair = paired("fifo", base, "late", shifted(base, 5.0))
    assert (pair.difference_s, pair.low_s, pair.high_s) == (pytest.approx(5),) * 3
    assert pair.settled and pair.ratio_low < pair.ratio < pair.ratio_high and pair.sooner == 0
    assert paired("fifo", base, "early", shifted(base, -5.0)).sooner == 1


def test_the_interval_holds_what_theory_says() -> None:
    """Of the mean of n differences: about 1.96 standard errors on each side."""
    base = simulated(*MANY)
    other = shifted(base, 0.0)
    noise = np.random.default_rng(3).normal(10, 40, len(MANY))
    for outcome, extra in zip(other.schedule.outcomes, noise.tolist(), strict=True):
        outcome.end_s += extra
    pair = paired("fifo", base, "noisy", other, seed=1)
    error = float(noise.std()) / math.sqrt(len(noise))
    assert pair.difference_s == pytest.approx(float(noise.mean()))
    assert (pair.high_s - pair.low_s) / 2 == pytest.approx(1.96 * error, rel=0.15)
    assert paired("fifo", base, "noisy", other, seed=1) == pair != paired("fifo", base, "noisy", other, seed=2)


def test_jobs_that_ended_under_both_count() -> None:
    base, other = simulated(*MANY), shifted(simulated(*MANY), 1.0)
    other.schedule.outcomes[0].end_s = math.nan
    assert paired("a", base, "b", other).jobs == len(MANY) - 1
    for outcome in other.schedule.outcomes:
        outcome.end_s = math.nan
    nothing = paired("a", base, "b", other)
    assert nothing.jobs == 0 and math.isnan(nothing.difference_s) and not nothing.settled


def test_a_policy_that_turns_jobs_away_is_not_ranked_best() -> None:
    """Its other jobs end sooner, since the devices are free."""
    base, other = simulated(*MANY), shifted(simulated(*MANY), -50.0)
    assert best({"fifo": base, "early": other}) == "early" and paired("fifo", base, "early", other).verdict == "shorter"
    other = shifted(base, -50.0)
    for outcome in other.schedule.outcomes[:3]:
        outcome.end_s, outcome.removed = math.nan, "no room"
    pair = paired("fifo", base, "picky", other)
    assert (pair.fewer, pair.verdict, pair.jobs) == (3, "ended 3 fewer", 37) and pair.difference_s == pytest.approx(-50)
    assert paired("picky", other, "fifo", base).verdict == "ended 3 more"
    assert best({"picky": other, "fifo": base, "late": shifted(base, 5.0)}) == "fifo"
    worse = shifted(base, 5.0)
    worse.schedule.outcomes[0].end_s = math.nan
    assert paired("fifo", base, "worse", worse).verdict == "longer", "fewer jobs and still longer"


def test_fewer_than_five_common_jobs_settle_nothing() -> None:
    base, other = simulated(*MANY), shifted(simulated(*MANY), 50.0)
    assert paired("a", base, "b", other).verdict == "longer"
    for outcome in other.schedule.outcomes[5:]:
        outcome.end_s = math.nan
    assert paired("a", base, "b", other).verdict == "longer"
    other.schedule.outcomes[4].end_s = math.nan
    few = paired("a", base, "b", other)
    assert (few.jobs, few.low_s, few.settled, few.verdict) == (4, pytest.approx(50), False, "too few jobs")


def test_two_processes_answer_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked here, which starts sooner than a fresh Python."""
    monkeypatch.setattr("paceline.scheduling.simulate.compare.get_context", lambda _: get_context("fork"))
    question = Scenario(jobs=JOBS, fleet=FOUR, settings=AT_ONCE, predictions=Predictions(FOUR))
    through: list[str] = []
    alone, together = run_policies(question, ["las", "fifo"]), run_policies(question, ["las", "fifo"], 2, through.append)
    assert list(together) == ["las", "fifo"] and set(through) == {"las", "fifo"}
    for name in alone:
        assert repr(together[name].schedule.outcomes) == repr(alone[name].schedule.outcomes)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_policy_that_fails_is_named(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.scheduling.simulate.compare.get_context", lambda _: get_context("fork"))
    question = Scenario(jobs=JOBS, fleet=Fleet.named("2x2xT4"), settings=AT_ONCE)
    with pytest.raises(UserError, match=r"^under cost: the price of T4 is unknown; give each type a price"):
        run_policies(question, ["fifo", "cost", "las"], processes)


def test_mistakes() -> None:
    question = Scenario(jobs=JOBS, fleet=FOUR, settings=AT_ONCE)
    for policies in ([], ["fifo", "fifo"]):
        with pytest.raises(UserError, match="name each policy once"):
            run_policies(question, policies)
    with pytest.raises(UserError, match="0 processes"):
        run_policies(question, ["fifo"], 0)
