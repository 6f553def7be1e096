"""Settlements: sums, signs, and the rules against each other."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.sites import job, site, two_sites
from paceline.errors import UserError
from paceline.market.federation.site import Federation
from paceline.market.game.rule_properties import properties_of
from paceline.market.game.settlement import RULES, savings_under, settle


def random_federation(seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    sites = []
    for name in "ABC"[: int(rng.integers(2, 4))]:
        jobs = [
            job(f"{name}{i}", float(rng.integers(0, 20_000)), float(rng.integers(100, 9000)), int(rng.integers(1, 9)))
            for i in range(int(rng.integers(1, 12)))
        ]
        sites.append(site(name, sorted(jobs, key=lambda each: each.arrival_s)))
    return Federation(sites=tuple(sites))


@pytest.mark.everyday("credits", "auction", "shapley", "least-core", others="long")
@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_paid_is_received(rule: str, seed: int) -> None:
    savings = savings_under(random_federation(seed), rule)
    settled = settle(savings, rule)
    total = savings.worth(savings.everyone)
    assert settled.received.sum() == pytest.approx(0, abs=1e-6)
    assert settled.saved.sum() == pytest.approx(total, abs=1e-6)
    assert settled.shares.sum() == pytest.approx(total, abs=1e-6)
    assert (settled.charges >= 0).all() and settled.charges.any() <= (rule in ("prices", "auction"))
    assert settled.credits.sum() == pytest.approx(0, abs=1e-9)
    if rule == "credits":
        assert not settled.received.any() and settled.prices is None


def test_equal_sites_share_equally() -> None:
    savings = savings_under(two_sites(), "shapley")
    assert settle(savings, "shapley").shares.tolist() == pytest.approx([1000 / 3600] * 2)
    assert settle(savings, "shapley").received.tolist() == pytest.approx([0, 0])


def test_under_credits_it_can_pay_to_hold_devices_back() -> None:
    """So the rule is not truthful: a site that says it lends nothing waits less."""
    honest = random_federation(0)
    liar = replace(honest, sites=(honest.sites[0], replace(honest.sites[1], lends=0), *honest.sites[2:]))
    costs = [savings_under(each, "credits").costs(7).total[1] for each in (honest, liar)]
    assert costs[1] < costs[0] - 0.5 and "truthfulness" in properties_of("credits").given_up


def test_under_credits_without_notice_a_site_may_wait_for_its_guests() -> None:
    busy = site("busy", [job(f"a{i}", 0, 9000) for i in range(3)])
    late = [job("b1", 60, 600), job("b2", 60, 600)]
    for notice, worse in ((math.inf, True), (0.0, False)):
        settled = settle(savings_under(Federation(sites=(busy, site("owner", late, notice_s=notice))), "credits"), "credits")
        assert (settled.shares[1] < 0) == worse == (settled.worse_off == (1,))


def test_who_only_lends_is_paid() -> None:
    busy = site("busy", [job(f"a{i}", 0, 3600) for i in range(4)])
    idle = site("idle", [job("b", 10_000_0, 60)])
    federation = Federation(sites=(busy, idle))
    for rule in ("shapley", "least-core", "prices"):
        settled = settle(savings_under(federation, rule), rule)
        assert settled.saved[0] > 0 and settled.saved[1] == 0
        assert settled.received[1] > 0, rule
        assert not settled.worse_off
    credits = settle(savings_under(federation, "credits"), "credits")
    assert credits.credits.tolist() == pytest.approx([-16, 16])


@pytest.mark.long
def test_more_than_twelve_sites_are_sampled() -> None:
    sites = tuple(site(f"s{i:02}", [job(f"s{i}", 100.0 * i, 5000), job(f"t{i}", 100.0 * i, 5000)]) for i in range(13))
    settled = settle(savings_under(Federation(sites=sites), "shapley"), "shapley")
    assert settled.standard_error.max() > 0
    assert settled.shares.sum() == pytest.approx(settled.saved.sum())


def test_unknown_rule() -> None:
    with pytest.raises(UserError, match=r"unknown rule 'credit'.*credits"):
        savings_under(two_sites(), "credit")
