"""The simulator against the exact chain of clouds that share; the chain against Erlang's formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from market.federations import free_rules
from market.sharing_chain import Cloud, stationary
from paceline.market.federation.federation_state import CLOUD, FederationDemand
from paceline.market.federation.flows import flows_of
from paceline.market.federation.simulation import simulate


def erlang_b(machines: int, load: float) -> float:
    blocked = 1.0
    for n in range(1, machines + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def erlang_c_queue(machines: int, load: float) -> float:
    b = erlang_b(machines, load)
    waits = b / (1 - load / machines * (1 - b))
    return waits * load / (machines - load)


@pytest.mark.parametrize(("machines", "load"), [(1, 0.5), (4, 3.0), (8, 10.0)])
def test_without_patience_it_is_a_loss_system(machines: int, load: float) -> None:
    got = stationary([Cloud(machines, 0, load / 5, 5.0, patience_s=0)])
    assert got.forwarded_per_s[0] == pytest.approx(load / 5 * erlang_b(machines, load))
    assert got.utilisation[0] == pytest.approx(load * (1 - erlang_b(machines, load)) / machines)


@pytest.mark.parametrize(("machines", "load"), [(8, 6.0), (16, 12.0)])
def test_with_endless_patience_it_is_a_delay_system(machines: int, load: float) -> None:
    got = stationary([Cloud(machines, 0, load, 1.0)])
    assert got.waiting[0] == pytest.approx(erlang_c_queue(machines, load), rel=1e-6)
    assert got.forwarded_per_s[0] < 1e-9


def test_a_long_patience_is_near_an_endless_one() -> None:
    got = stationary([Cloud(8, 0, 6.0, 1.0, patience_s=1e5)])
    assert got.waiting[0] == pytest.approx(erlang_c_queue(8, 6.0), rel=1e-3)
    assert got.forwarded_per_s[0] < 1e-3


@pytest.mark.long
def test_a_queue_behind_slow_guests_is_not_cut() -> None:
    """A cloud that waits for ever forwards nothing, however long the other's requests hold its machines."""
    got = stationary([Cloud(2, 2, 1.5, 1.0), Cloud(1, 0, 2.0, 50.0, 1.0)])
    assert got.forwarded_per_s[0] < 1e-6
    assert got.utilisation[0] == pytest.approx((1.5 + got.lent[0]) / 2)  # all own work is done at home


def test_all_machines_shared_are_one_system() -> None:
    """Without queues, two equal clouds that lend everything lose what one of twice the size loses."""
    got = stationary([Cloud(4, 4, 3.0, 1.0, patience_s=0)] * 2)
    assert got.forwarded_per_s.sum() == pytest.approx(6 * erlang_b(8, 6.0))
    assert got.borrowed == pytest.approx(got.lent)


def test_who_lends_nothing_is_alone() -> None:
    clouds = [Cloud(3, 0, 2.0, 1.0, 4.0), Cloud(5, 0, 6.0, 1.0, 1.0)]
    both = stationary(clouds)
    for i, cloud in enumerate(clouds):
        alone = stationary([cloud])
        assert both.forwarded_per_s[i] == pytest.approx(alone.forwarded_per_s[0], rel=1e-6)
        assert both.utilisation[i] == pytest.approx(alone.utilisation[0], rel=1e-6)
    assert not both.borrowed.any()


def test_what_is_lent_is_borrowed() -> None:
    got = stationary([Cloud(4, 2, 5.0, 1.0, 0.5), Cloud(3, 1, 1.0, 1.5, 2.0)])
    assert got.lent.sum() == pytest.approx(got.borrowed.sum())
    assert got.lent.tolist() == pytest.approx(got.borrowed[::-1].tolist())


def requests(clouds: list[Cloud], seconds: float, seed: int) -> FederationDemand:
    """A trace of the clouds' requests."""
    rng = np.random.default_rng(seed)
    parts = []
    for i, cloud in enumerate(clouds):
        count = rng.poisson(cloud.arrivals_per_s * seconds)
        patience = (
            rng.exponential(cloud.patience_s, count) if 0 < cloud.patience_s < math.inf else np.full(count, cloud.patience_s)
        )
        parts.append((rng.uniform(0, seconds, count), rng.exponential(cloud.mean_s, count), np.full(count, i), patience))
    arrival, duration, site, patience = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(arrival)
    ones = np.ones((len(clouds), len(clouds)))
    return FederationDemand(
        arrival_s=arrival[order],
        duration_s=duration[order],
        devices=np.ones(len(order), np.int64),
        site=site[order].astype(np.int64),
        kind=site[order].astype(np.int64),
        patience_s=patience[order],
        kind_site=np.arange(len(clouds)),
        speed=ones,
        believed=ones,
        delay_s=np.zeros_like(ones),
        cloud_speed=np.ones(len(clouds)),
        data_bytes=np.zeros(len(clouds)),
        checkpoint_bytes=np.zeros(len(clouds)),
        capacity=np.array([cloud.machines for cloud in clouds], np.int64),
        pool_site=np.arange(len(clouds)),
    )


@pytest.mark.parametrize(
    "clouds",
    [
        [Cloud(4, 2, 3.6, 1.0, 0.5), Cloud(6, 3, 3.0, 1.0, 0.5)],
        [Cloud(3, 3, 4.0, 1.0, 1.0), Cloud(5, 1, 2.0, 1.5, 3.0)],
        [Cloud(2, 1, 1.5, 1.0, 0.0), Cloud(2, 2, 1.0, 1.0, 0.0)],
    ],
)
def test_the_simulator_lies_within_its_interval_of_the_chain(clouds: list[Cloud]) -> None:
    exact = stationary(clouds)
    rules = free_rules(2, home_first=True, lends=np.array([cloud.lends for cloud in clouds]))
    seconds, batches = 2000.0, []
    for seed in range(12):
        demand = requests(clouds, seconds, seed)
        outcome = simulate(demand, rules, 3)
        flows = flows_of(demand, outcome, 2, periods=1)
        forwarded = np.bincount(demand.site[outcome.run_job[outcome.run_pool == CLOUD]], minlength=2) / seconds
        lent = np.array([flows.hours[0, 1], flows.hours[1, 0]]) * 3600 / seconds
        busy = flows.hours.sum(axis=1) * 3600 / seconds / demand.capacity
        batches.append(np.concatenate([forwarded, lent, busy]))
    mean, error = np.mean(batches, axis=0), np.std(batches, axis=0, ddof=1) / math.sqrt(len(batches))
    expected = np.concatenate([exact.forwarded_per_s, exact.lent, exact.utilisation])
    assert (np.abs(mean - expected) <= 3.5 * error + 1e-3).all(), (mean, expected, error)  # 3.5 of 11 degrees: 0.5 %
    assert (error < 0.05 * np.maximum(expected, 0.1)).all()
