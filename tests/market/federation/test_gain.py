"""What a site gains, and what that depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from market.federations import random_demand
from market.sites import job, site, two_sites
from paceline.errors import UserError
from paceline.market.federation.gain import drawn, gain_of
from paceline.market.federation.site import Federation
from paceline.market.game.settlement import RULES, savings_under, settle

WEEK_S = 7 * 86400.0


def test_the_gain_of_one_of_two() -> None:
    told: list[tuple[int, int]] = []
    savings = savings_under(two_sites(), "credits")
    gain = gain_of(savings, "A", "credits", draws=5, progress=lambda done, of: told.append((done, of)))
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
    # Its devices are free when B's jobs come: lending costs nothing. Each device-hour that it borrows saves 1/8 of a job-hour.
    assert gain.ask_least == 0 and gain.pay_most == pytest.approx(1 / 8)


def test_what_the_rule_pays_counts() -> None:
    """A site that only lends gains what it is paid."""
    busy = site("busy", [job(f"a{i}", 0, 3600) for i in range(4)])
    federation = Federation(sites=(busy, site("idle", [job("b", 100_000, 60)])))
    for rule in ("prices", "auction", "shapley"):
        gain = gain_of(savings_under(federation, rule), "idle", rule, draws=4)
        shares = settle(savings_under(federation, rule), rule).shares
        assert gain.gain == pytest.approx(shares[1]) == gain.received and gain.received > 0
        assert gain.paid == (rule != "shapley") and (gain.low <= gain.high if gain.paid else gain.low == 0)


@pytest.mark.parametrize("rule", RULES)
def test_draws_without_jobs_of_a_site(rule: str) -> None:
    bursts = [job(f"a{i}", at, 3600) for i, at in enumerate((0, 0, 0, 800_000))]
    federation = Federation(sites=(site("A", bursts), site("B", [job("b", 400_000, 60)])))
    assert gain_of(savings_under(federation, rule), "A", rule, draws=8).draws == 8


def test_what_a_site_must_lend() -> None:
    """A borrower in need of the others' devices costs them time; what it lends when they are busy makes up for it."""
    a = site(
        "A",
        [*(job(f"a{i}", 0, 3600) for i in range(3)), *(job(f"late{i}", 90_000, 600) for i in range(3))],
        waiting_price=100.0,
    )
    b = site("B", [job("b1", 600, 3600), *(job(f"c{i}", 40_000, 7200) for i in range(3))])
    savings = savings_under(Federation(sites=(a, b)), "credits")
    gain = gain_of(savings, "A", "credits", draws=1)
    assert gain.must_lend == 8
    never = savings_under(Federation(sites=(replace(a, lends=4), b)), "credits")
    assert gain_of(never, "A", "credits", draws=1).must_lend is None
    assert gain_of(savings_under(two_sites(), "credits"), "B", "credits", draws=1).must_lend == 0


def test_a_range_repeats_with_its_seed() -> None:
    savings = savings_under(two_sites(), "credits")
    one, same, other = (gain_of(savings, "B", "credits", 20, seed) for seed in (0, 0, 1))
    assert (one == same and (one.low, one.high) != (other.low, other.high)) or one.low == one.high


def test_unknown_site() -> None:
    with pytest.raises(UserError, match="unknown site 'C'"):
        gain_of(savings_under(two_sites(), "credits"), "C", "credits")


def test_alone_nothing_is_gained() -> None:
    alone = Federation(sites=(site("A", [job("a", 0, 10), job("b", 0, 10)]),))
    gain = gain_of(savings_under(alone, "credits"), "A", "credits", draws=3)
    assert gain.gain == gain.low == gain.high == 0 and gain.most_lent == gain.must_lend == 0
    assert gain.ask_least is None and gain.pay_most is None


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
