"""Auctions for jobs that wait: nobody pays more than it bid, limits hold, and what runs elsewhere was sold."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.game.test_settlement import random_federation
from market.sites import job, site
from paceline.market.federation.federation_state import lenders
from paceline.market.federation.simulation import simulate
from paceline.market.federation.site import Federation, Site
from paceline.market.game.rule_properties import properties_of
from paceline.market.game.settlement import savings_under, settle
from paceline.market.prices.job_auction import INTERVAL_S, Bid, Match, Offer, home_ends, match, run_auctions

prices = st.integers(0, 40).map(lambda eighths: eighths / 8)
bids = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), prices), max_size=12).map(
    lambda rows: [Bid(job, *row) for job, row in enumerate(rows)]
)
offers = st.lists(st.tuples(st.integers(0, 3), st.lists(prices, min_size=1, max_size=10).map(sorted)), max_size=5).map(
    lambda rows: [Offer(pool, owner, asks) for pool, (owner, asks) in enumerate(rows)]
)


ALL = dict.fromkeys(range(4), 1000)


def fresh(offers: list[Offer]) -> list[Offer]:
    return [Offer(offer.pool, offer.site, offer.asks) for offer in offers]


@given(bids, offers)
def test_nobody_trades_at_a_loss_and_whole_jobs_fit(bids: list[Bid], offers: list[Offer]) -> None:
    found = match(bids, fresh(offers), ALL, ALL)
    taken = dict.fromkeys(range(len(offers)), 0)
    for bid, pool in found.pairs:
        taken[pool] += bid.devices
        assert offers[pool].site != bid.site and bid.price >= found.price
    for offer in offers:
        assert taken[offer.pool] <= len(offer.asks)
        if taken[offer.pool]:
            assert offer.asks[taken[offer.pool] - 1] <= found.price
    assert len({bid.job for bid, _ in found.pairs}) == len(found.pairs)
    assert math.isnan(found.price) != bool(found.pairs)


@given(bids, offers)
def test_no_trade_that_both_want_is_left(bids: list[Bid], offers: list[Offer]) -> None:
    """At the price, no loser could still be served by an offer that has room."""
    left = fresh(offers)
    found = match(bids, left, ALL, ALL)
    if not found.pairs:
        assert not [1 for bid in bids for offer in left if offer.site != bid.site and offer.ask(bid.devices) <= bid.price]
        return
    served = {bid.job for bid, _ in found.pairs}
    for bid in bids:
        if bid.job not in served and bid.price > found.price:
            for offer in left:
                assert offer.site == bid.site or offer.ask(bid.devices) > bid.price


def test_a_price_by_hand() -> None:
    """The loser's bid, 3, is above the ask; the winner bids 5: half way is 4."""
    got = match([Bid(0, 0, 2, 5.0), Bid(1, 1, 2, 3.0)], [Offer(7, 2, (0.5, 1.0, 6.0))], ALL, ALL)
    assert got == Match(((Bid(0, 0, 2, 5.0), 7),), 4.0)
    assert match([Bid(0, 0, 2, 5.0)], [Offer(7, 2, (0.5, 1.0))], ALL, ALL).price == 3.0


def test_the_price_is_above_every_ask_that_wins() -> None:
    """The wide job fits only where it is dear; the narrow one finds a cheap device."""
    found = match([Bid(0, 0, 4, 10.0), Bid(1, 0, 1, 9.0)], [Offer(7, 1, (1.0,)), Offer(8, 2, (8.0,) * 4)], ALL, ALL)
    assert [pool for _, pool in found.pairs] == [8, 7] and found.price == 8.5


def test_one_auction_keeps_to_limits_over_all_its_bids() -> None:
    bids = [Bid(job, 0, 2, 5.0) for job in range(4)]
    for lends, borrows in (({1: 99, 2: 99}, {0: 5}), ({1: 2, 2: 2}, {0: 99})):
        found = match(bids, [Offer(7, 1, (0.0,) * 8), Offer(8, 2, (0.0,) * 8)], lends, borrows)
        assert len(found.pairs) == 2


def test_lost_work_is_not_paid() -> None:
    """The owner has its devices back at once, and the guest has no checkpoint yet: nothing is kept, nothing is paid."""
    busy = site("busy", [job(f"a{i}", 0, 9000) for i in range(3)])
    owner = site("owner", [job("b", 3000, 600)], notice_s=0.0)
    for checkpoint, paid in ((1e6, False), (600.0, True)):
        federation = Federation(sites=(busy, owner), checkpoint_s=checkpoint)
        for rule in ("auction", "prices"):
            settled = settle(savings_under(federation, rule), rule)
            first = int(np.flatnonzero(lenders(savings_under(federation, rule).demand, settled.outcome) == 1)[0])
            assert settled.outcome.run_end_s[first] == 3000 and bool(settled.charges[first]) == paid


def test_a_lie_can_help_so_it_is_not_truthful() -> None:
    asks = (0.5, 1.0, 6.0)
    honest, shaded = (match([Bid(0, 0, 2, bid)], [Offer(7, 2, asks)], ALL, ALL).price for bid in (5.0, 2.0))
    assert shaded < honest
    assert match([Bid(0, 0, 2, 5.0)], [Offer(7, 2, (4.0, 4.0))], ALL, ALL).price > honest
    assert properties_of("auction").truthfulness.kept == "none"


def test_a_lender_that_expects_wrongly_loses() -> None:
    """Nobody has come to it, so it asks for nothing; then its own job waits for the guest's ten hours."""
    busy = site("busy", [job("a1", 0, 4000), job("a2", 0, 36_000)])
    settled = settle(
        savings := savings_under(Federation(sites=(busy, site("idle", [job("b", 700, 60)]))), "auction"), "auction"
    )
    assert settled.worse_off == (1,) and savings.total(2) == 0
    assert properties_of("auction").individual_rationality.kept == "partly"


def crowded(**idle: object) -> Federation:
    """Six jobs of four devices on eight, beside eight devices of which nobody has need for a day."""
    busy = site("busy", [job(f"a{i}", 0, 2 * 3600, 4) for i in range(6)])
    return Federation(sites=(busy, site("idle", [job("b", 20 * 3600, 60)], **idle)))


def test_what_waits_bids_and_what_is_free_is_asked_for() -> None:
    auction = run_auctions(savings_under(crowded(), "auction"))
    # Two run at home at once. After ten minutes two of the others would wait for 11/6 hours more, two for 23/6: they bid that
    # over their eight device-hours. Eight devices serve two of them; the price is half way to the bids that lose.
    guests = np.flatnonzero(auction.price)
    assert auction.outcome.run_start_s[guests].tolist() == [600, 600] and auction.moment_s.tolist() == [600]
    assert auction.price[guests].tolist() == pytest.approx([(23 + 11) / 6 / 8 / 2] * 2)


def test_a_job_that_comes_later_waits_for_the_next_auction() -> None:
    federation = crowded()
    late = replace(federation.sites[0], jobs=(*federation.sites[0].jobs[:2], job("late", 100, 3600, 4)))
    auction = run_auctions(savings_under(replace(federation, sites=(late, federation.sites[1])), "auction"))
    assert auction.moment_s.tolist() == [INTERVAL_S]


def powered(site: Site, watts: float = 500.0) -> Site:
    return replace(site, fleet=replace(site.fleet, groups=tuple(replace(group, watts=watts) for group in site.fleet.groups)))


@pytest.mark.parametrize(("price", "lent"), [(0.2, True), (9.0, False)])
def test_energy_is_asked_for(price: float, lent: bool) -> None:
    plain = crowded(energy_price=price, pue=1.5)
    federation = replace(plain, sites=(plain.sites[0], powered(plain.sites[1])))
    auction = run_auctions(savings_under(federation, "auction"))
    paid = auction.price[auction.price > 0]
    assert bool(len(paid)) == lent and (paid >= 0.5 * price * 1.5).all()


def test_bytes_that_cost_more_than_the_wait_are_not_moved() -> None:
    federation = replace(crowded(), wan_price=1.0, data_bytes={"": 10e9})
    assert not run_auctions(savings_under(federation, "auction")).price.any()


def test_several_types_are_traded() -> None:
    """The same work on a faster device is worth more."""
    speeds = {"net": {"V100": 1.0, "A100 80GB": 3.0}}
    jobs = [job(f"a{i}", 0, 2 * 3600, 8, model="net") for i in range(3)]
    others = (site("B", [job("b", 90_000, 1)]), site("C", [job("c", 90_000, 1)], "1x8xA100 80GB"))
    speeds = {"net": {"V100 SXM2 16GB": 1.0, others[1].fleet.groups[0].device: 3.0}}
    federation = Federation(sites=(site("A", jobs), *others), speeds=speeds)
    auction = run_auctions(savings_under(federation, "auction"))
    assert sorted(auction.outcome.run_pool[auction.price > 0].tolist()) == [1, 2]
    assert len(auction.types) == 2 and np.isfinite(auction.cleared).all()


@given(seed=st.integers(0, 2**32 - 1))
def test_limits_hold_and_only_what_was_sold_runs_elsewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = random_federation(seed)
    sites = tuple(
        replace(
            each, lends=int(rng.integers(0, 17)), borrows=int(rng.integers(0, 17)), notice_s=float(rng.choice([0, 900, np.inf]))
        )
        for each in plain.sites
    )
    savings = savings_under(replace(plain, sites=sites), "auction")
    auction = run_auctions(savings)
    outcome, demand = auction.outcome, savings.demand
    lender, home, devices = lenders(demand, outcome), demand.site[outcome.run_job], demand.devices[outcome.run_job]
    assert np.isfinite(outcome.end_s).all() and not auction.price[lender < 0].any()
    for moment in outcome.run_start_s[lender >= 0]:
        now = (lender >= 0) & (outcome.run_start_s <= moment) & (moment < outcome.run_end_s)
        for number, each in enumerate(sites):
            assert devices[now & (lender == number)].sum() <= each.lends  # type: ignore[operator]
            assert devices[now & (home == number)].sum() <= each.borrows  # type: ignore[operator]


@given(seed=st.integers(0, 2**32 - 1))
def test_a_group_by_itself_is_that_federation(seed: int) -> None:
    plain = random_federation(seed)
    savings = savings_under(plain, "auction")
    two = savings_under(replace(plain, sites=plain.sites[:2]), "auction")
    assert savings.total(0b11) == pytest.approx(two.total(0b11))


@given(seed=st.integers(0, 2**32 - 1))
def test_what_a_site_expects_at_home_is_what_happens_if_nobody_else_comes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [job(str(i), 0, float(rng.integers(1, 9)) * 100, int(rng.integers(1, 9))) for i in range(8)]
    savings = savings_under(Federation(sites=(site("A", jobs),)), "credits")
    outcome = simulate(savings.demand, savings.rules, 1)
    expected = home_ends(0.0, {0: 8}, [], {i: (each.devices, {0: each.duration_s}) for i, each in enumerate(jobs)})
    assert [expected[i][0] for i in range(8)] == outcome.first_start_s.tolist()
    assert [expected[i][1] for i in range(8)] == outcome.end_s.tolist()
