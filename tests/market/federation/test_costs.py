"""What sharing costs, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.federations import random_demand, random_rules
from market.sites import job, site, two_sites
from paceline.hardware.catalogue import device
from paceline.market.federation.costs import costs_of, kept_part, mean_wait_s, moved_bytes
from paceline.market.federation.demand import demand_of, rules_of
from paceline.market.federation.simulation import simulate
from paceline.market.federation.site import Federation

V100, A100 = device("V100").name, device("A100 SXM 40GB").name


def priced() -> Federation:
    plain = two_sites(currency="$", wan_price=0.1, data_bytes={"": 20e9})
    groups = plain.sites[0].fleet.groups
    fleet = replace(plain.sites[0].fleet, groups=(replace(groups[0], watts=250.0),))
    prices = {"energy_price": 0.2, "waiting_price": 3.0, "fleet": fleet}
    return replace(plain, sites=(replace(plain.sites[0], pue=1.5, **prices), replace(plain.sites[1], **prices)))


def test_alone_and_together() -> None:
    federation = priced()
    demand, rules = demand_of(federation), rules_of(federation)
    alone = costs_of(federation, demand, simulate(demand, rules, 0b01))
    assert alone.waiting.tolist() == pytest.approx([3 * 1000 / 3600, 0])
    assert alone.energy.tolist() == pytest.approx([8 * 2010 / 3600 * 0.25 * 1.5 * 0.2, 0])
    assert not alone.wan.any() and not alone.cloud.any()
    both = costs_of(federation, demand, simulate(demand, rules, 0b11))
    assert not both.waiting.any()
    # One job of each ran at the other's: 1,000 s of eight devices on each side, and each paid for its 20 GB.
    assert both.energy.tolist() == pytest.approx([8 * 2010 / 3600 * 0.25 * 1.5 * 0.2, 8 * 2000 / 3600 * 0.25 * 0.2])
    assert both.wan.tolist() == pytest.approx([2.0, 2.0])
    assert both.total.tolist() == pytest.approx((both.energy + both.wan).tolist())


def test_the_cloud_costs_its_price() -> None:
    jobs = [job("a1", 0, 3600), job("a2", 0, 1800)]
    federation = Federation(sites=(site("A", jobs, cloud_price=2.0, cloud_after_s=600.0),), currency="$")
    demand, rules = demand_of(federation), rules_of(federation)
    costs = costs_of(federation, demand, simulate(demand, rules, 1))
    assert costs.cloud.tolist() == pytest.approx([8 * 0.5 * 2.0])
    assert costs.waiting.tolist() == pytest.approx([600 / 3600])


def test_faster_devices_are_a_gain() -> None:
    jobs = [job("a1", 0, 3600, model="net")]
    sites = (site("A", jobs), site("B", [job("b1", 9000, 1)], "1x8xA100 SXM 40GB"))
    federation = Federation(sites=sites, speeds={"net": {V100: 1.0, A100: 2.0}})
    demand, rules = demand_of(federation), rules_of(federation)
    assert costs_of(federation, demand, simulate(demand, rules, 0b11)).waiting.tolist() == pytest.approx([-0.5, 0])


def test_mean_wait() -> None:
    federation = two_sites()
    demand, rules = demand_of(federation), rules_of(federation)
    outcome = simulate(demand, rules, 0b01)
    assert mean_wait_s(demand, outcome) == pytest.approx(1000 / 3)
    assert np.isnan(mean_wait_s(demand, outcome, site=1))


def test_a_checkpoint_moves_where_a_job_goes_on_elsewhere() -> None:
    # A guest at B is sent away at 60 and goes on at home at 100: its data moved to B, its checkpoint back.
    a = site("A", [job("a1", 0, 100), job("a2", 0, 100)])
    b = site("B", [job("b", 50, 40)], notice_s=10.0)
    sizes = {"data_bytes": {"": 5e9}, "checkpoint_bytes": {"": 2e9}, "save_s": 5.0, "wan_price": 1.0, "currency": "$"}
    federation = Federation(sites=(a, b), **sizes)  # type: ignore[arg-type]
    demand, rules = demand_of(federation), rules_of(federation, home_first=True)
    outcome = simulate(demand, rules, 0b11)
    assert moved_bytes(demand, outcome).tolist() == [0, 5e9, 0, 2e9]
    assert costs_of(federation, demand, outcome).wan.tolist() == pytest.approx([7, 0])


@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_kept_of_all_runs_is_the_job(seed: int) -> None:
    """The work that runs keep adds up to the duration at home, whoever was sent away with which notice."""
    rng = np.random.default_rng(seed)
    demand = random_demand(rng)
    rules = replace(random_rules(rng), home_first=True, notice_s=rng.choice([0.0, 1.0, 4.0], 3))
    outcome = simulate(demand, rules, 0b111)
    job, long = outcome.run_job, outcome.run_end_s - outcome.run_start_s
    kept = kept_part(demand, rules, outcome) * long
    last = np.array([run == np.flatnonzero(job == job[run])[-1] for run in range(len(job))])
    first = np.array([run == np.flatnonzero(job == job[run])[0] for run in range(len(job))])
    wait = demand.delay_s[demand.kind[job], outcome.run_pool] + np.where(first, 0.0, rules.restart_s)
    work = (kept - np.where(last, wait, 0.0)) * demand.speed[demand.kind[job], outcome.run_pool]
    assert np.bincount(job, work) == pytest.approx(demand.duration_s)
