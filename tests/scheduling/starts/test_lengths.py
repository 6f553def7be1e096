"""Lengths: Kaplan-Meier against a textbook case, owners against all, limits, elapsed time."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.scheduling.starts.lengths import LengthDistribution, LengthModel, from_range, kaplan_meier, nothing_known
from queues import ended, runs, waits


def test_kaplan_meier_as_in_a_textbook() -> None:
    """Times 6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+ (Freireich 1963, 6-MP): S(10) = 0.7529."""
    times = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    over = [True] * 3 + [False, True, False, True, False, False, True, True] + [False] * 3 + [True, True] + [False] * 5
    values, mass, rest, last = kaplan_meier(np.array(times, float), np.ones(21), np.array(over))
    assert 1 - mass[values <= 10].sum() == pytest.approx(0.7529, abs=1e-4)
    assert (rest, last) == (pytest.approx(0.4482, abs=1e-4), 35.0)


def test_an_owner_with_a_history_is_told_by_it_and_another_by_the_rest() -> None:
    past = [ended(f"a{at}", 1, 1000.0 + at, user="ann", limit_s=7200.0) for at in range(30)]
    past += [ended(f"b{at}", 1, 5000.0 + at, user="bob", limit_s=7200.0) for at in range(30)]
    model = LengthModel.of(past)
    medians = {
        user: float(model.distribution(waits("x", 1, 7200.0, user=user)).quantile(0.5)) for user in ("ann", "bob", "eve")
    }
    assert medians["ann"] == pytest.approx(1015, abs=30) and medians["bob"] == pytest.approx(5015, abs=30)
    assert 1000 < medians["eve"] < 5030
    assert float(model.distribution(waits("x", 1, 600.0, user="bob")).quantile(0.9)) == 600.0  # its limit ends it


def test_jobs_that_run_longer_than_any_that_ended_lengthen_the_others() -> None:
    past = [ended(f"a{at}", 1, 100.0, user="ann") for at in range(5)]
    running = [runs(f"r{at}", 1, 5000.0, user="ann") for at in range(20)]
    alone, both = LengthModel.of(past), LengthModel.of(past, running)
    job = waits("x", 1, user="ann")
    assert float(both.distribution(job).quantile(0.5)) > 5000 > float(alone.distribution(job).quantile(0.5))


def test_the_rest_depends_on_the_time_so_far() -> None:
    even = LengthDistribution.of(np.arange(1.0, 101.0), np.ones(100))
    assert float(even.after(50.0).quantile(0.5)) == pytest.approx(75.5)
    assert float(even.after(200.0, 300.0).quantile(0.5)) == pytest.approx(250.0)
    assert float(even.after(200.0).quantile(0.5)) == pytest.approx(400.0, rel=0.05)  # Pareto: doubles with one half
    known = nothing_known(1000.0)
    assert float(known.quantile(0.5)) == pytest.approx(500.0, rel=0.05) and known.values.max() <= 1000.0
    assert len(even.thinned().values) == 100 and known.scaled(2.0).values.max() <= 2000.0


def test_correlation_is_found_where_days_differ() -> None:
    rng = np.random.default_rng(0)
    day = {at: rng.normal() for at in range(40)}
    jobs = [
        ended(f"j{at}", 1, float(np.exp(6 + 2 * day[at % 40] + rng.normal())), ago_s=86400.0 * (at % 40) + 50_000)
        for at in range(400)
    ]
    assert LengthModel.of(jobs).correlation_period > 0.3
    even = [ended(f"j{at}", 1, float(np.exp(6 + rng.normal())), ago_s=86400.0 * (at % 40) + 50_000) for at in range(400)]
    assert LengthModel.of(even).correlation_period < 0.1


def test_quantiles_of_a_predicted_length_are_those_of_its_range() -> None:
    found = from_range(50.0, 100.0, 400.0)
    assert [float(found.quantile(share)) for share in (0.1, 0.5, 0.9)] == pytest.approx([50.0, 100.0, 400.0], rel=0.03)
