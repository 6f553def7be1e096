"""Prices of device-hours: by hand, in the core of the fluid game, and conserved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from market.sites import job, site
from paceline.errors import UserError
from paceline.market.federation.demand import demand_of
from paceline.market.federation.site import Federation
from paceline.market.prices import period_prices as module
from paceline.market.prices.period_prices import TAIL_HOURS, period_prices


def contended() -> Federation:
    """A brings five hours of work for its devices in the first hour, B nothing but a job at the end."""
    return Federation(sites=(site("A", [job(f"a{i}", 0, 3600) for i in range(5)]), site("B", [job("b", 8 * 3600, 36)])))


def test_a_price_is_what_the_next_device_would_save() -> None:
    federation = contended()
    demand = demand_of(federation)
    prices = period_prices(federation, demand)
    assert prices.prices.shape == (1, 9 + TAIL_HOURS)
    # 40 device-hours on 16 devices: 24 wait for the second hour, 8 of them for the third. A device-hour is 1/8 of a job.
    assert prices.cost == pytest.approx((24 + 8) / 8)
    assert prices.backlog_hours[0, :3].tolist() == pytest.approx([24, 8, 0])
    assert prices.prices[0, :2].tolist() == pytest.approx([2 / 8, 1 / 8]) and not prices.prices[0, 2:].any()
    smaller = Federation(sites=(federation.sites[0],))
    alone = period_prices(smaller, demand_of(smaller))
    assert alone.cost == pytest.approx((32 + 24 + 16 + 8) / 8)


def test_the_dual_is_the_value() -> None:
    """Strong duality: work at its price, less devices at theirs, is the cost."""
    federation = contended()
    demand = demand_of(federation)
    prices = period_prices(federation, demand)
    more = Federation(sites=(federation.sites[0], site("B", federation.sites[1].jobs, "2x8xV100")))  # type: ignore[arg-type]
    cheaper = period_prices(more, demand_of(more)).cost
    assert prices.cost - 8 * prices.prices.sum() <= cheaper + 1e-9  # a tangent lies below


def test_a_charge_counts_parts_of_hours() -> None:
    prices = module.PeriodPrices(("T4",), np.array([[2.0, 4.0]]), np.zeros((1, 2)), 0.0, np.zeros(1))
    zero = np.zeros(3, np.int64)
    for floor, expected in ((0.0, [0.5, 1.0 + 2.0, 4 * 200 / 3600]), (3.0, [0.75, 1.5 + 2.0, 4 * 200 / 3600 + 3])):
        got = prices.charge(
            zero[:1], np.array([floor]), zero, np.array([0.0, 1800.0, 7000.0]), np.array([900.0, 5400.0, 10_800.0])
        )
        assert got.tolist() == pytest.approx(expected)


def powered(federation: Federation, number: int, watts: float, price: float) -> Federation:
    old = federation.sites[number]
    fleet = replace(old.fleet, groups=tuple(replace(group, watts=watts) for group in old.fleet.groups))
    changed = replace(old, fleet=fleet, energy_price=price)
    return replace(federation, sites=tuple(changed if n == number else each for n, each in enumerate(federation.sites)))


def test_a_lender_with_dear_energy_has_its_price() -> None:
    plain = contended()
    # Alone, A's last work waits for four hours, each worth 1/8 a device-hour: at 0.6 nobody pays for B's.
    for price, waits in ((0.1, 24), (0.2, 24), (0.6, 32)):
        prices = period_prices(powered(plain, 1, 1000.0, price), demand_of(plain))
        assert prices.backlog_hours[0, 0] == pytest.approx(waits)
        assert prices.prices[0, 0] >= min(price, 0.5) - 1e-9


@pytest.mark.parametrize(("number", "limit"), [(0, "borrows"), (1, "lends")])
def test_limits_hold(number: int, limit: str) -> None:
    """Half of B's devices serve half as much of A's backlog; none, nothing."""
    plain = contended()
    for devices, waits in ((8, 24), (4, 28), (0, 32)):
        changed = replace(plain.sites[number], **{limit: devices})
        sites = tuple(changed if n == number else each for n, each in enumerate(plain.sites))
        prices = period_prices(replace(plain, sites=sites), demand_of(plain))
        assert prices.backlog_hours[0, 0] == pytest.approx(waits)


@pytest.mark.long
@given(seed=st.integers(0, 2**32 - 1))
def test_prices_are_in_the_core_of_the_fluid(seed: int) -> None:
    """No group pays less by itself: with energy, bytes, the public cloud and limits (Owen, 1975)."""
    rng = np.random.default_rng(seed)
    sites = []
    for name in "ABC":
        moments, long, wide = (rng.integers(*limits, 9) for limits in ((0, 20_000), (1, 30), (1, 9)))
        jobs = [job(f"{name}{i}", float(moments[i]), 1000.0 * long[i], int(wide[i])) for i in range(9)]
        more = {"cloud_after_s": 0.0, "cloud_price": float(rng.integers(1, 9)) / 8} if rng.integers(2) else {}
        sites.append(
            site(
                name,
                sorted(jobs, key=lambda each: each.arrival_s),
                f"{rng.integers(1, 3)}x8xV100",
                lends=int(rng.integers(0, 9)) if rng.integers(2) else None,
                borrows=int(rng.integers(0, 9)) if rng.integers(2) else None,
                waiting_price=float(rng.integers(0, 5)),
                **more,
            )
        )
    federation = Federation(sites=tuple(sites), currency="$", wan_price=float(rng.integers(2)) / 50, data_bytes={"": 10e9})
    for number in range(3):
        federation = powered(federation, number, 500.0, float(rng.integers(4)) / 8)

    def cost(members: list[int]) -> float:
        group = replace(federation, sites=tuple(federation.sites[number] for number in members))
        return period_prices(group, demand_of(group)).cost

    prices = period_prices(federation, demand_of(federation))
    paid = [prices.costs[number] for number in range(3)]
    assert sum(paid) == pytest.approx(prices.cost, abs=1e-6)
    for members in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        assert sum(paid[number] for number in members) <= cost(members) + 1e-6


def test_faster_devices_cost_more() -> None:
    speeds = {"net": {"T4": 1.0, "V100 SXM2 16GB": 3.0}}
    slow = site("A", [job(f"a{i}", 0, 3600, 8, model="net") for i in range(20)], "1x8xT4")
    fast = site("B", [job("b", 8 * 3600, 36, model="net")], "1x8xV100")
    federation = Federation(sites=(slow, fast), speeds=speeds)
    prices = period_prices(federation, demand_of(federation))
    first = dict(zip(prices.types, prices.prices[:, 0], strict=True))
    assert first["V100 SXM2 16GB"] == pytest.approx(3 * first["T4"]) and first["T4"] > 0


def test_a_long_trace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CELLS", 10)
    federation = contended()
    with pytest.raises(UserError, match="prices of 57 hours on 1 device types for 2 sites"):
        period_prices(federation, demand_of(federation))
