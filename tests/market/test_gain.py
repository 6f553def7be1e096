"""What a site gains, and what that depends on."""

from __future__ import annotations

import numpy as np
import pytest

from market.federations import random_demand
from market.sites import job, site, two_sites
from paceline.errors import UserError
from paceline.market.gain import WEEK_S, drawn, gain_of, lending
from paceline.market.savings import Savings
from paceline.market.site import Federation


def test_the_gain_of_one_of_two() -> None:
    told: list[tuple[int, int]] = []
    gain = gain_of(Savings.of(two_sites()), "A", draws=5, progress=lambda done, of: told.append((done, of)))
    assert (gain.gain, gain.alone, gain.together) == pytest.approx((1000 / 3600, 1000 / 3600, 0))
    assert (gain.wait_alone_s, gain.wait_together_s) == pytest.approx((1000 / 3, 0))
    assert gain.lent_hours == gain.borrowed_hours == pytest.approx(8 * 1000 / 3600)
    assert gain.most_lent == 8 and gain.low <= gain.high and gain.draws == 5
    depends = {each.what: each.gain for each in gain.depends}
    assert depends["without B"] == 0
    assert depends["its own jobs take 20 % longer"] == pytest.approx(1200 / 3600)
    assert depends["it lends nothing"] == pytest.approx(1000 / 3600)  # B's loss
    assert told[-1][0] == told[-1][1] == len(told)
    assert gain.depends[0].what == "without B"  # what matters most stands first


def test_a_range_repeats_with_its_seed() -> None:
    savings = Savings.of(two_sites())
    one, same, other = (gain_of(savings, "B", 20, seed) for seed in (0, 0, 1))
    assert (one == same and (one.low, one.high) != (other.low, other.high)) or one.low == one.high


def test_unknown_site() -> None:
    with pytest.raises(UserError, match="unknown site 'C'"):
        gain_of(Savings.of(two_sites()), "C")


def test_alone_nothing_is_gained() -> None:
    gain = gain_of(Savings.of(Federation(sites=(site("A", [job("a", 0, 10), job("b", 0, 10)]),))), "A", draws=3)
    assert gain.gain == gain.low == gain.high == 0 and gain.most_lent == 0


def test_drawn_weeks_keep_what_coincides() -> None:
    rng = np.random.default_rng(1)
    demand = random_demand(rng, jobs=400)
    object.__setattr__(demand, "arrival_s", demand.arrival_s / demand.arrival_s.max() * (5 * WEEK_S - 2))
    got = drawn(demand, rng)
    assert (np.diff(got.arrival_s) >= 0).all() and got.arrival_s.max() < 5 * WEEK_S
    place_in_week = {
        (float(d), int(k)): a % WEEK_S for d, k, a in zip(demand.duration_s, demand.kind, demand.arrival_s, strict=True)
    }
    same = [place_in_week[float(d), int(k)] for d, k in zip(got.duration_s, got.kind, strict=True)]
    assert np.mean(np.isclose(same, got.arrival_s % WEEK_S)) > 0.5  # equal jobs of other weeks make up the rest
    assert set(got.kind.tolist()) <= set(demand.kind.tolist())


def test_lent_and_borrowed_are_equal_in_sum() -> None:
    savings = Savings.of(two_sites())
    outcome = savings.outcome(3)
    figures = [lending(savings.demand, outcome, number) for number in range(2)]
    assert sum(lent for lent, _, _ in figures) == pytest.approx(sum(borrowed for _, borrowed, _ in figures))
