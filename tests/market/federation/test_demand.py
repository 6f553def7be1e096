"""A federation as arrays."""

import numpy as np
import pytest

from market.sites import job, site, two_sites
from paceline.hardware.catalogue import device
from paceline.market.federation.demand import UNLIMITED, demand_of, jobs_in_order, one_pool, rules_of
from paceline.market.federation.site import Federation
from paceline.market.game.settlement import savings_under, settle


def mixed(**more: object) -> Federation:
    a = site("A", [job("a1", 3, 10, 2, model="net"), job("a2", 1, 10, 2, model="other")], "1x8xV100 + 1x4xT4")
    b = site("B", [job("b1", 2, 10, 8, model="net"), job("b2", 2, 5, 2, device_types=("A100 SXM 40GB",))], "2x8xA100 SXM 40GB")
    return Federation(sites=(a, b), **more)  # type: ignore[arg-type]


def test_jobs_come_in_order_of_arrival() -> None:
    demand = demand_of(mixed())
    assert demand.arrival_s.tolist() == [1, 2, 2, 3]
    assert demand.site.tolist() == [0, 1, 1, 0]
    assert demand.devices.tolist() == [2, 8, 2, 2]
    assert demand.capacity.tolist() == [8, 4, 16] and demand.pool_site.tolist() == [0, 0, 1]


def test_sites_with_jobs_that_arrive_together_take_turns() -> None:
    sites = [site(name, [job(f"{name}{index}", 0, 10) for index in range(3)]) for name in "ABC"]
    later = site("D", [job("D0", 5, 10), job("D1", 0, 10)])
    names = [found.name for found in jobs_in_order(Federation(sites=(*sites, later)))]
    assert names == ["A0", "B0", "C0", "D1", "C1", "B1", "A1", "A2", "B2", "C2", "D0"]


def test_two_equal_saturated_sites_gain_the_same() -> None:
    """Neither gains by the order of the file: each alone is as well off, so under credits nobody leaves."""
    sites = tuple(site(name, [job(f"{name}{index}", 0, 3600) for index in range(40)]) for name in "ab")
    for rule in ("credits", "prices"):
        savings = savings_under(Federation(sites=sites), rule)
        assert settle(savings, rule).saved.tolist() == pytest.approx([0, 0], abs=1e-9)


def test_speeds_are_stated_predicted_or_unknown() -> None:
    stated = {"net": {device(name).name: speed for name, speed in (("V100", 2.0), ("T4", 1.0), ("A100 SXM 40GB", 5.0))}}
    demand = demand_of(mixed(speeds=stated))
    kinds = demand.kind.tolist()
    assert demand.speed[kinds[3]].tolist() == [1, 0.5, 2.5]  # a1 of net, home is the V100
    assert demand.speed[kinds[0]].tolist() == [1, 0, 0]  # nothing is known of the other model
    assert demand.speed[kinds[1]].tolist() == [0.4, 0, 1]  # b1 does not fit on four T4
    assert demand.speed[kinds[2]].tolist() == [0, 0, 1]  # b2 keeps to its type
    told = demand_of(mixed(), lambda job, home, device: 3.0)
    assert told.speed[told.kind[0]].tolist() == [1, 3, 3]


def test_equal_jobs_are_of_one_kind() -> None:
    demand = demand_of(two_sites())
    assert len(demand.kind_site) == 2 and demand.kind.tolist() == [0, 0, 1, 1, 0]


def test_data_take_time_to_other_sites() -> None:
    demand = demand_of(mixed(wan_bytes_per_s=1e9, data_bytes={"net": 5e9, "": 1e9}))
    assert demand.delay_s[demand.kind[3]].tolist() == [0, 0, 5]
    assert demand.delay_s[demand.kind[0]].tolist() == [0, 0, 1]


def test_one_pool_holds_what_the_members_have() -> None:
    federation = two_sites(wan_bytes_per_s=1e9, data_bytes={"": 5e9})
    demand = demand_of(federation)
    for members, devices in ((0b01, 8), (0b10, 8), (0b11, 16)):
        pooled = one_pool(federation, demand, members)
        assert pooled.capacity.tolist() == [devices] and pooled.pool_site.tolist() == [-1]
        assert not pooled.delay_s.any() and pooled.speed.tolist() == [[1], [1]]
    assert one_pool(mixed(), demand_of(mixed()), 0b10).capacity.tolist() == [0, 0, 16]


def test_rules_are_the_limits_of_the_sites() -> None:
    sites = (site("A", [job("a", 0, 1)], lends=3, notice_s=60.0), site("B", [job("b", 0, 1)], borrows=5, cloud_after_s=9.0))
    rules = rules_of(Federation(sites=sites, checkpoint_s=7.0), by_credit=True)
    assert rules.lends.tolist() == [3, UNLIMITED] and rules.borrows.tolist() == [UNLIMITED, 5]
    assert rules.notice_s.tolist() == [60, np.inf]
    assert demand_of(Federation(sites=sites)).patience_s.tolist() == [np.inf, 9]
    assert rules.by_credit and not rules.home_first and rules.checkpoint_s == 7
