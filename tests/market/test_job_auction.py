"""Hourly auctions: what is traded is used, paid and received; nobody lends or borrows what was not traded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.sites import job, site
from market.test_settlement import random_federation
from paceline.errors import UserError
from paceline.market.hourly_auction import HOUR, _last_known, run_auctions
from paceline.market.settlement import savings_under
from paceline.market.site import Federation


def crowded(**idle: object) -> Federation:
    """Six jobs of four devices on eight, beside eight devices of which nobody has need."""
    busy = site("busy", [job(f"a{i}", 0, 2 * 3600, 4) for i in range(6)])
    return Federation(sites=(busy, site("idle", [job("b", 20 * 3600, 60)], **idle)))


def test_what_waits_bids_and_what_is_free_is_asked_for() -> None:
    savings = savings_under(crowded(), "auction")
    auction = run_auctions(savings)
    # Nothing is known at hour 0. At hour 1 sixteen devices are wanted at 1/4 each, and eight are free at 0. McAfee drops one
    # unit, and a job needs four: one starts.
    assert auction.units[:2].tolist() == [0, 7] and auction.lost_units[1] == 1
    assert auction.paid[1] == 0.25 and auction.received[1] == 0
    starts = auction.outcome.run_start_s[auction.outcome.run_pool == 1]
    assert starts.tolist()[0] == HOUR
    received, surplus = auction.transfers(savings.demand, 2)
    assert received[0] < 0 and received.sum() == pytest.approx(-surplus)


def test_energy_is_asked_for() -> None:
    from dataclasses import replace

    plain = crowded(energy_price=0.2, pue=1.5)
    groups = tuple(replace(group, watts=500.0) for group in plain.sites[1].fleet.groups)
    warm = replace(plain.sites[1], fleet=replace(plain.sites[1].fleet, groups=groups))
    auction = run_auctions(savings_under(replace(plain, sites=(plain.sites[0], warm)), "auction"))
    assert auction.received[1] == pytest.approx(0.5 * 0.2 * 1.5)


def test_dear_energy_is_not_lent() -> None:
    from dataclasses import replace

    plain = crowded(energy_price=9.0)
    groups = tuple(replace(group, watts=500.0) for group in plain.sites[1].fleet.groups)
    warm = replace(plain.sites[1], fleet=replace(plain.sites[1].fleet, groups=groups))
    auction = run_auctions(savings_under(replace(plain, sites=(plain.sites[0], warm)), "auction"))
    assert not auction.units.any() and not (auction.outcome.run_pool == 1)[auction.outcome.run_job < 6].any()


@given(seed=st.integers(0, 2**32 - 1))
def test_guests_are_never_more_than_what_was_traded(seed: int) -> None:
    savings = savings_under(random_federation(seed), "auction")
    auction = run_auctions(savings)
    outcome, demand = auction.outcome, savings.demand
    guest = demand.pool_site[outcome.run_pool] != demand.site[outcome.run_job]
    for hour, units in enumerate(auction.units):
        begun = guest & (outcome.run_start_s == hour * HOUR)
        held = guest & (outcome.run_start_s < hour * HOUR) & (outcome.run_end_s > hour * HOUR)
        devices = demand.devices[outcome.run_job]
        assert devices[begun].sum() <= units + devices[held].sum()
    assert np.isfinite(outcome.end_s).all()


def test_a_price_holds_until_the_next() -> None:
    assert _last_known(np.array([np.nan, 2.0, np.nan, 3.0])).tolist() == [0, 2, 2, 3]


def test_several_types_are_refused() -> None:
    sites = (site("A", [job("a", 0, 1)]), site("B", [job("b", 0, 1)], "1x8xT4"))
    with pytest.raises(UserError, match="an auction of 2 device types; the auction trades equal devices"):
        run_auctions(savings_under(Federation(sites=sites), "auction"))
