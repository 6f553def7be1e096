"""Daly's formula against simulated failures, its optimum against a search, and Young's limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.planning.failures.daly import best_interval, slowdown

HOURS = st.floats(0.5, 1000.0)


def simulated(mean_s: float, interval_s: float, write_s: float, restart_s: float, segments: int, seed: int) -> float:
    """Return the time of a run with drawn failures over its work: a failure repeats its segment after a whole restart."""
    random = np.random.default_rng(seed)
    clock, ends = 0.0, random.exponential(mean_s)
    for _ in range(segments):
        while True:
            if ends >= clock + interval_s + write_s:
                clock += interval_s + write_s
                break
            clock, ends = ends, ends + random.exponential(mean_s)
            while ends < clock + restart_s:  # a restart fails too
                clock, ends = ends, ends + random.exponential(mean_s)
            clock += restart_s
    return clock / (segments * interval_s)


@pytest.mark.parametrize(
    ("mean_s", "interval_s", "write_s", "restart_s"), [(3.1, 0.3, 0.02, 0.2), (1.0, 1.0, 0.1, 0.5), (56.0, 1.3, 0.02, 0.25)]
)
def test_formula_is_the_mean_of_simulated_failures(mean_s: float, interval_s: float, write_s: float, restart_s: float) -> None:
    runs = [simulated(mean_s, interval_s, write_s, restart_s, 2000, seed) for seed in range(8)]
    error = float(np.std(runs)) / math.sqrt(len(runs))
    assert slowdown(mean_s, interval_s, write_s, restart_s) == pytest.approx(float(np.mean(runs)), abs=4 * error + 1e-3)


@given(HOURS, st.floats(0.001, 0.3))
def test_best_interval_is_the_least_of_the_formula(mean: float, share: float) -> None:
    write = share * mean
    best = slowdown(mean, best_interval(mean, write), write, 0.0)
    least = min(slowdown(mean, mean * x, write, 0.0) for x in np.geomspace(0.01, 3, 200))
    assert best <= least * 1.002


@given(HOURS, st.floats(1e-6, 1e-4))
def test_rare_failures_have_youngs_interval_and_cost(mean: float, share: float) -> None:
    write = share * mean
    young = math.sqrt(2 * write * mean)
    assert best_interval(mean, write) == pytest.approx(young, rel=0.02)
    assert slowdown(mean, young, write, 0.0) == pytest.approx(1 + math.sqrt(2 * share), rel=0.001)


def test_limits() -> None:
    assert slowdown(math.inf, 100.0, 1.0, 50.0) == 1.01
    assert slowdown(1.0, 1000.0, 1.0, 0.0) == math.inf
    assert best_interval(1.0, 3.0) == 1.0
