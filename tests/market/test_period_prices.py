"""Prices of device-hours: by hand, in the core of the fluid game, and conserved."""

from __future__ import annotations

import numpy as np
import pytest

from market.sites import job, site
from paceline.errors import UserError
from paceline.market import period_prices as module
from paceline.market.demand import demand_of, rules_of
from paceline.market.period_prices import TAIL_HOURS, period_prices, price_transfers
from paceline.market.simulation import simulate
from paceline.market.site import Federation


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


def test_transfers_charge_what_was_lent() -> None:
    federation = contended()
    demand = demand_of(federation)
    prices = period_prices(federation, demand)
    outcome = simulate(demand, rules_of(federation), 0b11)
    paid = price_transfers(federation, demand, outcome, prices)
    assert paid.sum() == pytest.approx(0)
    assert paid[1] == pytest.approx(8 * prices.prices[0, :2].sum())  # a job in each of the first two hours


def test_a_charge_counts_parts_of_hours() -> None:
    prices = module.PeriodPrices(("T4",), np.array([[2.0, 4.0]]), np.zeros((1, 2)), 0.0)
    zero = np.zeros(3, np.int64)
    got = prices.charge(zero, np.array([0.0, 1800.0, 7000.0]), np.array([900.0, 5400.0, 99_999.0]), np.array([2, 1, 1]))
    assert got.tolist() == pytest.approx([1.0, 1.0 + 2.0, 4 * 200 / 3600])


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
