"""The price of devices rented for the whole trace: against bisection, and against the cheapest of all divisions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from market.sites import busy_and_idle, job, site
from paceline.errors import UserError
from paceline.market.federation.site import Federation
from paceline.market.game.savings import Savings
from paceline.market.game.settlement import savings_under
from paceline.market.prices.dynamic_price import Worth, dynamic_price, worth
from paceline.market.sharing.simulated_game import span_hours


def federation(seed: int, **more: object) -> Federation:
    """Three sites of equal devices and unequal loads: 95 %, 60 % and 30 %."""
    rng = np.random.default_rng(seed)
    sites = []
    for name, load, price in (("A", 0.95, 5.0), ("B", 0.6, 3.0), ("C", 0.3, 4.0)):
        arrivals = np.sort(rng.uniform(0, 400 * 3600, round(load * 400 * 8)))
        jobs = [job(f"{name}{i}", at, rng.exponential(3600), 1) for i, at in enumerate(arrivals.tolist())]
        sites.append(site(name, jobs, waiting_price=price, **more))
    return Federation(sites=tuple(sites), currency="$")


def cost(savings: Savings, number: int, devices: int) -> float:
    """An hour, of a site alone on so many devices."""
    capacity = savings.demand.capacity.copy()
    capacity[number] = devices
    changed = savings.changed(demand=replace(savings.demand, capacity=capacity))
    return float(changed.costs(1 << number).total[number]) / span_hours(savings)


def wanted(worths: tuple[Worth, ...], price: float) -> float:
    """What all sites buy together at a price."""
    bought = [np.interp(-price, -each.marginal, each.devices) for each in worths]
    return float(sum(np.clip(number, each.low, each.high) for number, each in zip(bought, worths, strict=True)))


@pytest.mark.parametrize("seed", range(4))
def test_the_price_is_where_demand_equals_supply(seed: int) -> None:
    found = dynamic_price(savings_under(federation(seed), "prices"))
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if wanted(found.worths, middle) > 0 else (low, middle)
    assert found.process.converged and found.process.price == pytest.approx(low, rel=0.01) and low > 0
    assert found.process.quantities[-1].sum() == pytest.approx(0, abs=1e-3)
    assert found.process.quantities[-1][0] > 0 > found.process.quantities[-1][2]


@pytest.mark.parametrize("seed", range(2))
def test_at_that_price_devices_are_divided_as_cheaply_as_can_be(seed: int) -> None:
    """Of all divisions of the 24 devices into integers. The whole saving, but for what is lost by rounding."""
    savings = savings_under(federation(seed), "prices")
    bought = dynamic_price(savings).process.quantities[-1]
    costs = [[cost(savings, number, devices) for devices in range(1, 23)] for number in range(3)]
    totals = {
        (a, b): costs[0][a - 1] + costs[1][b - 1] + costs[2][24 - a - b - 1]
        for a, b in itertools.product(range(1, 23), repeat=2)
        if a + b < 24
    }
    rounded = [8 + int(part) for part in (np.floor(bought[0]), np.ceil(bought[0]))]
    here = min(totals[a, b] for a in rounded for b in (8 + int(np.floor(bought[1])), 8 + int(np.ceil(bought[1]))))
    assert totals[8, 8] - here >= 0.95 * (totals[8, 8] - min(totals.values())) > 0


def test_the_worth_of_a_device_is_what_its_jobs_no_longer_cost() -> None:
    savings = savings_under(federation(0), "prices")
    found = worth(savings, 0)
    assert (np.diff(found.marginal) <= 0).all() and (found.marginal >= 0).all()
    assert (np.diff(found.devices) > 0).all()
    # Below its worth at 8 devices the curve is the lower hull of the costs: nowhere above them, and equal at the ends.
    assert found.low <= 0 and found.high == 16
    sum_of_parts = np.interp(np.arange(0.005, 16, 0.01), found.devices, found.marginal).sum() * 0.01
    assert sum_of_parts == pytest.approx(cost(savings, 0, 8) - cost(savings, 0, 24), rel=0.05)


def test_limits_hold() -> None:
    """C lends two devices at most, and A and B nothing: no more than two are sold."""
    base = federation(1)
    sites = tuple(replace(each, lends=2 if each.name == "C" else 0) for each in base.sites)
    few = dynamic_price(savings_under(replace(base, sites=sites), "prices"))
    many = dynamic_price(savings_under(base, "prices"))
    assert few.process.converged and few.process.quantities[-1][2] == pytest.approx(-2, abs=1e-3)
    assert few.process.price > many.process.price


def test_what_nobody_needs_costs_nothing() -> None:
    jobs = [job("a", 0, 60, 1), job("b", 36000, 60, 1)]
    found = dynamic_price(savings_under(Federation(sites=(site("A", jobs), site("B", jobs))), "prices"))
    assert found.process.converged and found.to_json()["price"] == 0


def test_a_site_keeps_what_its_largest_job_needs() -> None:
    found = worth(savings_under(busy_and_idle(), "prices"), 1)
    assert found.low == 0 and found.high == 8


def test_several_device_types_have_no_single_price() -> None:
    sites = (site("A", [job("a", 0, 10)]), site("B", [job("b", 0, 10)], "1x8xA100"))
    with pytest.raises(UserError, match="one price of 2 device types"):
        dynamic_price(savings_under(Federation(sites=sites), "prices"))
