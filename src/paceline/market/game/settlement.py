"""Settlement: the savings of a federation divided among its sites by a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.array_types import Array
from paceline.errors import known_name
from paceline.market.federation.costs import HOUR, costs_of, energy_prices, kept_part
from paceline.market.federation.demand import Speed
from paceline.market.federation.federation_state import FederationDemand, FederationOutcome, lenders
from paceline.market.federation.flows import lending
from paceline.market.federation.site import Federation
from paceline.market.game.core import nucleolus
from paceline.market.game.game import MOST_ENUMERATED
from paceline.market.game.savings import Progress, Savings, SharingRules
from paceline.market.game.shapley import shapley
from paceline.market.prices.job_auction import JobAuctions, run_auctions
from paceline.market.prices.period_prices import PeriodPrices, period_prices, types_of


@dataclass(frozen=True)
class Settlement:
    """Savings and payments of each site, in the federation's currency; arrays of shape (sites,).

    Attributes:
        saved: its costs alone less its costs together, before payments.
        received: payments from the others; negative if it pays.
        standard_error: standard error of a sampled division; zeros if exact.
        credits: device-hours lent less borrowed; they sum to 0. A rule without money settles by them.
        outcome: outcome of all jobs, as the rule serves them.
        charges: payment of each run's owner to its lender, shape (runs,); 0 at home and under rules without prices. Lost work
            of an evicted run is not paid.
        prices: by hour, if the rule has prices. ``auction``: trades, if it has auctions.
    """

    rule: str
    saved: Array
    received: Array
    standard_error: Array
    credits: Array
    outcome: FederationOutcome
    charges: Array
    prices: PeriodPrices | None = None
    auction: JobAuctions | None = None

    @property
    def shares(self) -> Array:
        """Final gain of each site."""
        return self.saved + self.received

    @property
    def worse_off(self) -> tuple[int, ...]:
        """Indices of the sites that would do better by themselves."""
        least = -1e-9 * max(float(np.abs(self.saved).sum()), 1.0)
        return tuple(np.flatnonzero(self.shares < least).tolist())


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of settlement.

    Attributes:
        about: description in one sentence.
        by_credit: credits decide the order of service.
        by_auction: jobs run at other sites only by auction.
        whole_game: it needs the saving of every coalition.
    """

    about: str
    by_credit: bool = False
    by_auction: bool = False
    whole_game: bool = False


RULES: Mapping[str, Rule] = {
    "credits": Rule("no money: whoever has lent most is served first", by_credit=True),
    "prices": Rule("a posted price a device and hour, the dual of the pooled linear program"),
    "shapley": Rule("each site's mean contribution over all orders of joining", whole_game=True),
    "auction": Rule("a double auction every ten minutes, in which sites bid for their jobs that wait", by_auction=True),
    "least-core": Rule("the nucleolus: it leaves the least to gain for any group that leaves", whole_game=True),
}


def savings_under(federation: Federation, rule: str, speed: Speed | None = None) -> Savings:
    """Return the savings game with the rule's order of service. Raises UserError for an unknown rule, with the nearest."""
    name = known_name("rule", rule, RULES)
    serve = _serve_by_auction if RULES[name].by_auction else None
    return Savings.of(federation, SharingRules(by_credit=RULES[name].by_credit, home_first=True, serve=serve), speed)


def _serve_by_auction(savings: Savings, members: int) -> FederationOutcome:
    return run_auctions(savings, members).outcome


def settle(savings: Savings, rule: str, progress: Progress | None = None) -> Settlement:
    """Divide the joint saving of all sites.

    Args:
        savings: as ``savings_under`` makes it for the rule.

    Raises:
        UserError: an unknown rule; a trace that is too long for prices.
    """
    name = known_name("rule", rule, RULES)
    sites = len(savings.federation.sites)
    everyone = savings.everyone
    if RULES[name].whole_game and sites <= MOST_ENUMERATED:
        savings.simulate_all(progress=progress)
    auction = run_auctions(savings, progress=progress) if RULES[name].by_auction else None
    outcome = savings.outcome(everyone) if auction is None else auction.outcome
    costs = costs_of(savings.federation, savings.demand, outcome).total
    saved = np.array([savings.total(1 << site) for site in range(sites)]) - costs
    figures = [lending(savings.demand, outcome, site) for site in range(sites)]
    credits = np.array([lent - borrowed for lent, borrowed, _ in figures])
    prices = period_prices(savings.federation, savings.demand) if name == "prices" else None
    charges = _charges(savings, outcome, prices, auction)
    received, error = _received(savings.demand, outcome, charges, sites), np.zeros(sites)
    if RULES[name].whole_game:
        shares, error = _DIVISIONS[name](savings)
        received = shares - saved
    return Settlement(name, saved, received, error, credits, outcome, charges, prices, auction)


def _charges(savings: Savings, outcome: FederationOutcome, prices: PeriodPrices | None, auction: JobAuctions | None) -> Array:
    """Return the charge of each run, shape (runs,). Runs in the cloud have no lender."""
    demand, pool = savings.demand, outcome.run_pool
    guest = lenders(demand, outcome) >= 0
    devices = demand.devices[outcome.run_job]
    if auction is not None:
        paid = auction.price * (outcome.run_end_s - outcome.run_start_s) / HOUR
    elif prices is not None:
        pool_type, _ = types_of(savings.federation)
        inside = np.maximum(pool, 0)
        floor = energy_prices(savings.federation)
        paid = prices.charge(pool_type, floor, inside, outcome.run_start_s, outcome.run_end_s)
    else:
        return np.zeros(len(pool))
    return np.where(guest, paid * devices * kept_part(demand, savings.rules, outcome), 0.0)


def _received(demand: FederationDemand, outcome: FederationOutcome, charges: Array, sites: int) -> Array:
    """Return receipts less payments of each site."""
    lender = np.maximum(lenders(demand, outcome), 0)  # runs at home have no charge
    return np.asarray(np.bincount(lender, charges, sites) - np.bincount(demand.site[outcome.run_job], charges, sites))


def _by_shapley(savings: Savings) -> tuple[Array, Array]:
    value = shapley(savings.game())
    return value.shares, value.standard_error


def _by_least_core(savings: Savings) -> tuple[Array, Array]:
    shares = nucleolus(savings.game()).shares
    return shares, np.zeros_like(shares)


_DIVISIONS: Mapping[str, Callable[[Savings], tuple[Array, Array]]] = {"shapley": _by_shapley, "least-core": _by_least_core}
