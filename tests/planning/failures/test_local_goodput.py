"""Goodput of sites that fail: closed forms against drawn failures, limits and orders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.errors import UserError
from paceline.planning.failures.local_goodput import SiteFailures

ROUND = 600.0
CASES = {
    "rare failures": SiteFailures(sites=8, mean_s=50 * ROUND, round_s=ROUND, rejoin_s=900.0),
    "a deadline": SiteFailures(sites=16, mean_s=20 * ROUND, round_s=ROUND, rejoin_s=2000.0, wait_s=90.0),
    "back before the deadline ends": SiteFailures(sites=4, mean_s=5 * ROUND, round_s=ROUND, rejoin_s=60.0, wait_s=300.0),
    "back after rounds exactly": SiteFailures(sites=4, mean_s=8 * ROUND, round_s=ROUND, rejoin_s=3 * ROUND),
}


def drawn_peers(case: SiteFailures, rounds: int = 4000) -> float:
    """Play rounds of sites that fail, and count the time of completed ones."""
    draw, ready = np.random.default_rng(1), np.zeros(case.sites)
    now = useful = 0.0
    for left in draw.exponential(case.mean_s, (rounds, case.sites)):
        up = ready <= now + 1e-9
        failed = up & (left < case.round_s)
        useful += case.round_s * (up & ~failed).sum()
        ready = np.where(failed, now + left + case.rejoin_s, ready)
        now += case.round_s + (case.wait_s if failed.any() else 0.0)
    return useful / (now * case.sites)


def drawn_learner(case: SiteFailures, lives: int = 50_000) -> float:
    """Draw the lives of a learner, and count what each fragment's exchanges kept of them."""
    up = np.random.default_rng(2).exponential(case.mean_s, lives)
    firsts = [case.round_s * (f + 1) / case.fragments for f in range(case.fragments)]
    kept = [np.where(up >= o, o + case.round_s * np.floor((up - o) / case.round_s), 0.0) for o in firsts]
    return float(np.mean(kept) * lives / (up + case.rejoin_s).sum())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_peers_lose_the_rounds_that_drawn_failures_cost(case: SiteFailures) -> None:
    # sites that wait for a lost one keep each other's rounds in step: with a deadline the form is an approximation
    assert case.peers() == pytest.approx(drawn_peers(case), rel=0.02)


@pytest.mark.parametrize("fragments", [1, 4, 24])
def test_a_decoupled_learner_loses_what_drawn_failures_cost(fragments: int) -> None:
    case = SiteFailures(sites=8, mean_s=3 * ROUND, round_s=ROUND, rejoin_s=500.0, fragments=fragments)
    assert case.decoupled() == pytest.approx(drawn_learner(case), rel=0.01)


def test_all_that_stop_lose_what_short_checkpoints_cost() -> None:
    case = SiteFailures(sites=10, mean_s=1e6, round_s=100.0, rejoin_s=50.0)
    # 1e5 s between failures of any: half a round of 100 s and a restart of 50 s each, to first order
    assert case.all_stop() == pytest.approx(1 - 100 / 1e5, abs=1e-5)


def test_who_loses_less_is_faster_and_without_failures_nothing_is_lost() -> None:
    for sites in (2, 8, 64):
        case = SiteFailures(sites=sites, mean_s=1e5, round_s=1200.0, rejoin_s=900.0, fragments=24, write_s=60.0)
        assert case.all_stop() < case.peers() < case.decoupled() < 1e5 / (1e5 + 900)
    calm = SiteFailures(sites=8, mean_s=math.inf, round_s=1200.0, rejoin_s=900.0)
    assert calm.all_stop() == calm.peers() == calm.decoupled() == 1


def test_times_that_are_none_are_refused() -> None:
    for wrong in ({"mean_s": 0.0}, {"round_s": -1.0}, {"rejoin_s": math.inf}, {"sites": 0}, {"fragments": 0}):
        with pytest.raises(UserError):
            SiteFailures(**{"sites": 2, "mean_s": 1.0, "round_s": 1.0, "rejoin_s": 1.0, **wrong})  # type: ignore[arg-type]
