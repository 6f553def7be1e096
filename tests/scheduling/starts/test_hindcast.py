"""Hindcasts: the past is rebuilt without later knowledge, and ranges are stretched to what it shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions, StartForecast
from paceline.scheduling.starts.hindcast import MOST_STRETCH, RATE, Hindcast, PastStarts, past_starts, queue_at
from paceline.scheduling.traces.record import LoggedJob
from queues import NOW, queue, runs, waits

OPTIONS = ForecastOptions(futures=16, arrivals=False)


def one_after_the_other(number: int) -> list[LoggedJob]:
    """Jobs of ten minutes on all devices, three of which wait at any time."""
    ends = [NOW - 60.0 - 600.0 * at for at in range(number)]
    return [
        LoggedJob(
            name=f"h{at}", state="ended", submit_s=end - 2400.0, start_s=end - 600.0, end_s=end, run_s=600.0, devices=8,
            limit_s=3600.0, priority=at,
        )
        for at, end in enumerate(ends)
    ]  # fmt: skip


def test_a_past_queue_has_nothing_that_was_known_later() -> None:
    there = replace(queue(runs("r", 8, 60.0, 3600.0), waits("w", 8, since_s=30.0)), history=tuple(one_after_the_other(60)))
    past = queue_at(there, NOW - 6070.0)
    assert [job.name for job in past.running] == ["h10"] and past.running[0].run_s == pytest.approx(590.0)
    assert [job.name for job in past.waiting] == ["h9", "h8", "h7"]  # by submission, whatever the priority became
    assert all(np.isnan([job.start_s, job.end_s, job.run_s]).all() for job in past.waiting)
    assert {job.name for job in past.history} == {f"h{at}" for at in range(11, 60)}


def test_a_regular_queue_is_forecast_within_its_range_and_kept_hindcasts_are_not_made_again() -> None:
    there = replace(queue(runs("r", 8, 60.0, 3600.0), waits("w", 8, 3600.0)), history=tuple(one_after_the_other(60)))
    kept: dict[str, Hindcast] = {}
    said: list[str] = []
    past = past_starts(there, OPTIONS, 6, say=said.append, kept=kept)
    assert past.coverage() == (6, 6) and len(said) == 6 and len(kept) == 6
    first = kept[past.hindcasts[0].name].futures_s
    again = past_starts(there, OPTIONS, 6, kept=kept)
    assert again.hindcasts[0].futures_s is first
    simulated = Forecaster(there, OPTIONS).forecast().jobs[0]
    assert past.stretched(simulated).start() == pytest.approx(simulated.start(), abs=30.0)


def drawn(spread: float, number: int, seed: int, actual: float) -> tuple[Hindcast, ...]:
    """Hindcasts whose logarithms spread by one, of starts that spread by another."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(9.0, 0.5, number)
    futures = np.exp(middle[:, None] + spread * rng.normal(size=(number, 64)))
    waits_s = np.exp(middle + actual * rng.normal(size=number))
    moments = NOW - 1e7 + 1e5 * np.arange(number)
    return tuple(
        Hindcast(str(at), moments[at], moments[at] + waits_s[at], futures[at]) for at in range(number)
    )  # fmt: skip


@pytest.mark.parametrize(("simulated", "actual"), [(0.6, 1.4), (1.4, 0.6)])
def test_ranges_too_narrow_are_widened_and_those_too_wide_narrowed(simulated: float, actual: float) -> None:
    past, later = drawn(simulated, 80, 1, actual), drawn(simulated, 150, 2, actual)
    checks = PastStarts(past, NOW)
    inside: list[tuple[bool, bool]] = []
    for hindcast in later:
        forecast = StartForecast(waits("w", 8), hindcast.futures_s, np.ones(64))
        wait_s = hindcast.start_s - hindcast.moment_s
        moved = checks.stretched(forecast)
        assert moved.start() == pytest.approx(forecast.start(), rel=0.05)
        inside.append(tuple(each.start(0.1) <= wait_s <= each.start(0.9) for each in (forecast, moved)))  # type: ignore[arg-type]
    before, after = np.mean(inside, axis=0)
    assert abs(after - 0.8) < 0.75 * abs(before - 0.8) and abs(before - 0.8) > 0.15


@pytest.mark.parametrize("actual", [0.5, 2.0])
def test_the_share_of_past_starts_inside_is_within_the_bound_of_a_quantile_tracker(actual: float) -> None:
    inside, checked = PastStarts(drawn(1.0, 240, 3, actual), NOW + 1e9).coverage()
    assert checked == 240 and abs(inside / checked - 0.8) <= 2 * np.log(MOST_STRETCH) / (RATE * checked)


def test_a_range_is_fitted_by_no_start_after_the_present() -> None:
    past, until_s = drawn(1.0, 60, 5, 2.0), NOW - 1e7 + 3e6
    unknown = tuple(replace(each, start_s=np.nan) if each.start_s > until_s else each for each in past)
    forecast = StartForecast(waits("w", 8), past[0].futures_s, np.ones(64))
    known, cold = (PastStarts(each[:30], until_s).stretched(forecast).start_s for each in (past, unknown))
    assert known.tolist() == cold.tolist()


def test_without_a_past_the_range_is_the_simulated_one_and_waits_so_far_are_bounds() -> None:
    futures = np.exp(np.random.default_rng(1).normal(9.0, 1.0, 64))
    forecast = StartForecast(waits("w", 8), futures, np.ones(64))
    alone = PastStarts((), NOW).stretched(forecast)
    assert [alone.start(q) for q in (0.1, 0.9)] == pytest.approx([forecast.start(q) for q in (0.1, 0.9)], rel=0.1)
    waiting = tuple(Hindcast(str(at), NOW - 10 * 8103.0, np.nan, futures) for at in range(30))
    late = PastStarts(waiting, NOW).stretched(forecast)
    assert late.start(0.9) > 1.5 * alone.start(0.9) and PastStarts(waiting, NOW).coverage() == (0, 0)
    never = replace(forecast, start_s=np.full(64, np.inf))
    assert PastStarts(waiting, NOW).stretched(never).start() == np.inf
