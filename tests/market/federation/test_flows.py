"""Device-hours between sites."""

import numpy as np
import pytest

from market.federations import random_demand, random_rules
from market.sites import two_sites
from paceline.market.federation.demand import demand_of, rules_of
from paceline.market.federation.flows import flows_of, lending
from paceline.market.federation.simulation import simulate
from paceline.market.game.savings import Savings


def test_flows_by_hand() -> None:
    federation = two_sites()
    demand = demand_of(federation)
    flows = flows_of(demand, simulate(demand, rules_of(federation), 3), 2)
    hour = 8 * 1000 / 3600
    assert flows.hours == pytest.approx(np.array([[8 * 1010 / 3600, hour], [hour, hour]]))


def test_the_area_is_what_was_lent() -> None:
    rng = np.random.default_rng(4)
    demand, rules = random_demand(rng, jobs=200), random_rules(rng)
    flows = flows_of(demand, simulate(demand, rules, 7), 3, periods=50)
    lent = flows.hours.sum(axis=1) - np.diag(flows.hours)
    assert (flows.lent * np.diff(flows.edges_s)).sum(axis=1) / 3600 == pytest.approx(lent)
    assert (flows.lent >= -1e-9).all()


def test_one_pool_for_all_lends_nothing() -> None:
    rng = np.random.default_rng(2)
    demand = random_demand(rng, 1, shared=True)
    flows = flows_of(demand, simulate(demand, random_rules(rng, 1), 1), 1)
    assert not flows.lent.any() and flows.hours[0, 0] > 0


def test_lent_and_borrowed_are_equal_in_sum() -> None:
    savings = Savings.of(two_sites())
    outcome = savings.outcome(3)
    figures = [lending(savings.demand, outcome, number) for number in range(2)]
    assert sum(lent for lent, _, _ in figures) == pytest.approx(sum(borrowed for _, borrowed, _ in figures))
