"""Simulated federations: by hand, as a queue of one pool, and the same from C++ and Python."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.federations import free_rules, random_demand, random_rules
from paceline.market.federation import simulation
from paceline.market.federation.federation_state import CLOUD, FederationDemand, FederationOutcome
from paceline.market.federation.simulation import begin, simulate

seeds = st.integers(0, 2**32 - 1)


def demand(jobs: list[tuple[float, float, int, int]], capacity: list[int], delay: float = 0.0) -> FederationDemand:
    """Jobs (arrival, duration, devices, site) on one pool a site."""
    kinds = sorted({(site, devices) for _, _, devices, site in jobs})
    kind_site = np.array([site for site, _ in kinds], np.int64)
    pool_site = np.arange(len(capacity))
    return FederationDemand(
        arrival_s=np.array([job[0] for job in jobs], float),
        duration_s=np.array([job[1] for job in jobs], float),
        devices=np.array([job[2] for job in jobs], np.int64),
        site=np.array([job[3] for job in jobs], np.int64),
        kind=np.array([kinds.index((job[3], job[2])) for job in jobs], np.int64),
        patience_s=np.full(len(jobs), np.inf),
        kind_site=kind_site,
        speed=np.ones((len(kinds), len(capacity))),
        believed=np.ones((len(kinds), len(capacity))),
        delay_s=np.where(kind_site[:, None] == pool_site, 0.0, delay),
        cloud_speed=np.ones(len(kinds)),
        data_bytes=np.zeros(len(kinds)),
        checkpoint_bytes=np.zeros(len(kinds)),
        capacity=np.array(capacity, np.int64),
        pool_site=pool_site.astype(np.int64),
    )


@given(seeds)
def test_python_and_cpp_agree(seed: int) -> None:
    if simulation._native is None:
        pytest.skip("needs the extension: make native")
    rng = np.random.default_rng(seed)
    sites = int(rng.integers(1, 5))
    jobs, rules = (
        random_demand(rng, sites, shared=bool(rng.integers(5) == 0), wrong=bool(rng.integers(2)), impatient=True),
        random_rules(rng, sites),
    )
    members = int(rng.integers(1, 1 << sites))
    ours, theirs = (simulate(jobs, rules, members, native) for native in (False, True))
    for field in fields(FederationOutcome):
        assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name), equal_nan=True), field.name


@given(seeds)
def test_nothing_is_overbooked_and_nothing_is_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, rules = random_demand(rng, impatient=True), random_rules(rng)
    members = int(rng.integers(1, 8))
    got = simulate(jobs, rules, members)
    inside = np.array([members >> int(site) & 1 for site in jobs.site], bool)
    assert np.isnan(got.end_s[~inside]).all() and np.isfinite(got.end_s[inside]).all()
    assert (got.first_start_s[inside] >= jobs.arrival_s[inside]).all()
    starts, ends, pools = got.run_start_s, got.run_end_s, got.run_pool
    devices, home = jobs.devices[got.run_job], jobs.site[got.run_job]
    owner = np.where(pools == CLOUD, -2, jobs.pool_site[pools])
    guest = (owner >= 0) & (owner != home)
    for moment in np.unique(starts):
        now = (starts <= moment) & (moment < ends)
        for pool, capacity in enumerate(jobs.capacity):
            assert devices[now & (pools == pool)].sum() <= capacity
        for site in range(3):
            assert devices[now & guest & (owner == site)].sum() <= rules.lends[site]
            assert devices[now & guest & (home == site)].sum() <= rules.borrows[site]
    for job in np.flatnonzero(inside):  # one run at a time, the last one to the end
        mine = np.flatnonzero(got.run_job == job)
        assert (starts[mine][1:] >= ends[mine][:-1]).all()
        assert ends[mine][-1] == got.end_s[job]
        assert len(mine) == got.restarts[job] + 1


@given(seeds)
def test_alone_a_site_is_untouched_by_the_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = random_demand(rng)
    none = replace(free_rules(3), lends=np.zeros(3, np.int64))
    together, alone = simulate(jobs, none, 7), [simulate(jobs, none, 1 << site) for site in range(3)]
    for site in range(3):
        mine = jobs.site == site
        assert np.array_equal(together.end_s[mine], alone[site].end_s[mine])


def test_the_data_of_a_guest_take_time() -> None:
    jobs = demand([(0, 100, 4, 0), (0, 100, 4, 0)], [4, 4], delay=30)
    assert simulate(jobs, free_rules(2), 0b11).end_s.tolist() == [100, 130]
    assert simulate(jobs, free_rules(2), 0b01).end_s.tolist() == [100, 200]


def test_guests_leave_with_notice_and_keep_what_they_save() -> None:
    jobs = demand([(0, 100, 4, 0), (0, 100, 4, 0), (50, 40, 4, 1)], [4, 4])
    rules = free_rules(2, home_first=True, notice_s=np.array([10.0, 10.0]), checkpoint_s=25.0, save_s=5.0, restart_s=2.0)
    got = simulate(jobs, rules, 0b11)
    # The guest is told at 50, works to 55, saves, leaves at 60; 45 s of its work are left, after a restart at home at 100.
    assert got.end_s.tolist() == [100, 147, 100]
    assert got.restarts.tolist() == [0, 1, 0]
    short = replace(rules, notice_s=np.array([4.0, 4.0]))  # too short to save: the checkpoint at 50 is what is left
    assert simulate(jobs, short, 0b11).end_s.tolist() == [100, 94 + 2 + 50, 94]


def test_credit_decides_who_is_served() -> None:
    # Site 0 lends to site 1 from 0 to 10. At 50 site 2 has devices for one: the job of site 1 came first, site 0 has credit.
    jobs = demand(
        [(0, 10, 4, 1), (0, 10, 4, 1), (15, 90, 4, 0), (15, 90, 4, 1), (16, 34, 4, 2), (20, 5, 4, 1), (21, 5, 4, 0)], [4] * 3
    )
    first = simulate(jobs, free_rules(3, home_first=True), 7)
    fair = simulate(jobs, free_rules(3, home_first=True, by_credit=True), 7)
    assert first.first_start_s.tolist()[5:] == [50, 55]
    assert fair.first_start_s.tolist()[5:] == [55, 50]


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("by_credit", [False, True])
def test_an_owner_and_a_guest_that_arrive_together(by_credit: bool, native: bool) -> None:
    """A site's own job takes its device first, whatever the order of the rows: at arrival, and where a device is freed then."""
    if native and simulation._native is None:
        pytest.skip("needs the extension: make native")
    rules = free_rules(2, home_first=True, by_credit=by_credit)
    jobs = demand([(0, 100, 4, 0), (0, 100, 4, 0), (0, 100, 4, 0), (0, 100, 4, 1), (100, 100, 4, 1)], [4, 4])
    got = simulate(jobs, rules, 0b11, native)
    assert got.first_start_s.tolist() == [0, 100, 200, 0, 100]
    assert got.run_pool.tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("native", [False, True])
def test_equal_credit_is_served_in_turn(native: bool) -> None:
    """Two saturated sites borrow from a third: the site that was second at a tie is first at the next (A B, B A)."""
    if native and simulation._native is None:
        pytest.skip("needs the extension: make native")
    rows = [(0.0, 100.0, 4, 0)] * 20 + [(0.0, 100.0, 4, 1)] * 20 + [(0.0, 100.0, 4, 2)]
    got = simulate(demand(rows, [4, 4, 4]), free_rules(3, home_first=True, by_credit=True), 0b111, native)
    guests = got.run_pool == 2
    turns = [int(row) for row in np.array([row[3] for row in rows])[got.run_job[guests]]]
    assert turns[:9] == [2, 0, 1, 1, 0, 0, 1, 1, 0]
    assert abs(got.end_s[:20].sum() - got.end_s[20:40].sum()) <= 100


@pytest.mark.parametrize("native", [False, True])
def test_equal_lenders_lend_in_turn(native: bool) -> None:
    if native and simulation._native is None:
        pytest.skip("needs the extension: make native")
    jobs = demand([(10.0 * index, 15.0, 4, 0) for index in range(9)], [4, 4, 4])
    lenders = simulate(jobs, free_rules(3, home_first=True), 0b111, native).run_pool
    assert (lenders == 1).sum() == (lenders == 2).sum() == 2


def test_who_waits_too_long_goes_to_the_cloud() -> None:
    jobs = demand([(0, 100, 4, 0), (5, 100, 4, 0), (6, 10, 4, 0)], [4])
    got = simulate(replace(jobs, patience_s=np.full(3, 20.0)), free_rules(1), 1)
    assert got.end_s.tolist() == [100, 125, 36]
    assert got.run_pool.tolist() == [0, CLOUD, CLOUD]


def test_a_wrong_index_is_refused() -> None:
    if simulation._native is None:
        pytest.skip("needs the extension: make native")
    jobs = demand([(0, 100, 4, 0)], [4])
    with pytest.raises(ValueError, match="lies outside"):
        simulate(replace(jobs, kind=np.array([1], np.int64)), free_rules(1), 1, native=True)


@given(seeds)
def test_reclaim_at_once_comes_to_an_end(seed: int) -> None:
    """Guests that are sent away do not send away others without end: each that leaves makes room for an owner's job."""
    rng = np.random.default_rng(seed)
    jobs = random_demand(rng, 5, 150, types=1)
    jobs = replace(
        jobs, delay_s=np.full_like(jobs.delay_s, 3.0), speed=np.ones_like(jobs.speed), believed=np.ones_like(jobs.speed)
    )
    got = simulate(jobs, free_rules(5, home_first=True, notice_s=np.zeros(5)), 31)
    assert np.isfinite(got.end_s).all()
    assert got.restarts.sum() <= 8 * len(got.end_s)  # at most as many as the devices that an owner's job takes


def test_a_wrong_belief_sends_a_job_to_the_slower_devices() -> None:
    jobs = demand([(0, 100, 4, 0)], [4, 4])
    jobs = replace(jobs, speed=np.array([[1.0, 0.5]]), believed=np.array([[1.0, 2.0]]))
    got = simulate(jobs, free_rules(2), 0b11)
    assert got.run_pool.tolist() == [1] and got.end_s.tolist() == [200]


@given(seeds)
def test_steps_and_limits_on_the_way_agree_too(seed: int) -> None:
    if simulation._native is None:
        pytest.skip("needs the extension: make native")
    rng = np.random.default_rng(seed)
    jobs, rules = random_demand(rng, 3), random_rules(rng, 3)
    both = [begin(jobs, rules, 7, native) for native in (False, True)]
    for moment in np.sort(rng.uniform(0, 120, 8)):
        lends, borrows = rng.integers(0, 9, 3), rng.integers(0, 9, 3)
        for one in both:
            one.run_until(float(moment))
            one.limit(float(moment), lends, borrows)
        for job in both[0].waiting().tolist()[:4]:
            kind, free = jobs.kind[job], both[0].free()
            pool = next((p for p in range(len(free)) if free[p] >= jobs.devices[job] and jobs.speed[kind, p] > 0), None)
            if pool is not None and rng.integers(2):
                assert len({one.start(float(moment), job, pool) for one in both}) == 1
        for one in both:
            with pytest.raises(ValueError, match="no such job"):
                one.start(float(moment), int(rng.choice([-1, len(jobs.devices)])), 0)
        assert all(np.array_equal(*pair) for pair in zip(*(one.running() for one in both), strict=True))
        for name in ("waiting", "free", "lent", "borrowed", "remaining", "restarted"):
            assert np.array_equal(getattr(both[0], name)(), getattr(both[1], name)()), name
    assert both[0].run_until(np.inf) and both[1].run_until(np.inf)
    ours, theirs = (one.outcome() for one in both)
    for field in fields(FederationOutcome):
        assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name), equal_nan=True), field.name


def test_a_limit_that_is_lifted_starts_what_waits() -> None:
    jobs = demand([(0, 100, 4, 0), (0, 100, 4, 0)], [4, 4])
    run = begin(jobs, free_rules(2, lends=np.zeros(2, np.int64)), 0b11)
    assert not run.run_until(30.0) and run.waiting().tolist() == [1] and run.free().tolist() == [0, 4]
    run.limit(30.0, np.array([0, 4]), np.array([4, 0]))
    assert run.lent().tolist() == [0, 4] and run.borrowed().tolist() == [4, 0] and not run.waiting().size
    assert run.run_until(np.inf) and run.outcome().end_s.tolist() == [100, 130]


@pytest.mark.parametrize("native", [False, True])
def test_devices_that_were_kept_for_a_job_are_free_when_it_leaves_for_the_cloud(native: bool) -> None:
    if native and simulation._native is None:
        pytest.skip("needs the extension: make native")
    # A guest holds 3 of the owner's 4 devices; the owner's job wants all and leaves after 10 s; another guest wants the last.
    jobs = demand([(0, 500, 4, 1), (1, 500, 3, 1), (2, 500, 4, 0), (3, 500, 1, 1)], [4, 4])
    patient = replace(jobs, patience_s=np.array([np.inf, np.inf, 10.0, np.inf]))
    outcome = simulate(patient, free_rules(2, notice_s=np.full(2, 100.0), home_first=True), 0b11, native)
    assert outcome.first_start_s.tolist() == [0, 1, 12, 12]
