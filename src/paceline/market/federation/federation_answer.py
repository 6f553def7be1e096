"""The complete answer for a federation: gains, payments and stability under a rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import known_name
from paceline.market.federation.costs import costs_of, mean_wait_s
from paceline.market.federation.demand import Speed
from paceline.market.federation.federation_state import FederationOutcome
from paceline.market.federation.flows import LendingFlows, flows_of
from paceline.market.federation.site import Federation, priced
from paceline.market.game.game import MOST_ENUMERATED
from paceline.market.game.rule_properties import properties_of
from paceline.market.game.savings import Progress, Savings, SharingRules
from paceline.market.game.settlement import RULES, Settlement, savings_under, settle
from paceline.market.game.stability import StabilityVerdict, judge
from paceline.tabular import Row, Tabular

MOST_BY_AUCTION = 6
"""Most sites whose groups are all compared under ``auction``. Each takes seconds: one auction per ten minutes of the trace."""


@dataclass(frozen=True, slots=True)
class SiteAnswer:
    """One site under a rule; costs in the federation's currency, over the trace.

    Attributes:
        load: mean share of its devices that its own jobs would use. ``share``: its final gain.
        received: from the others; negative if it pays. ``standard_error``: standard error of both if they were sampled.
    """

    site: str
    devices: int
    jobs: int
    load: float
    wait_alone_s: float
    wait_together_s: float
    cost_alone: float
    cost_together: float
    received: float
    share: float
    standard_error: float
    lent_hours: float
    borrowed_hours: float


@dataclass(frozen=True, kw_only=True)
class FederationAnswer(Tabular):
    """Value of a federation for its sites.

    Attributes:
        one_pool: saving of one pool of all devices, first come first served, with data everywhere and jobs that span sites.
        flows: between sites. ``savings``: the simulations of coalitions.
        notes: remarks, one sentence each.
    """

    rule: str
    currency: str
    sites: tuple[SiteAnswer, ...]
    saved: float
    one_pool: float
    restarts: int
    verdict: StabilityVerdict
    settlement: Settlement
    flows: LendingFlows
    savings: Savings
    notes: tuple[str, ...] = ()

    def rows(self) -> Sequence[Row]:
        """Return one row per site."""
        return [{name: getattr(site, name) for name in SiteAnswer.__slots__} for site in self.sites]

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain values."""
        return {
            "rule": self.rule,
            "about": RULES[self.rule].about,
            "mechanism": [list(row) for row in properties_of(self.rule).rows()],
            "currency": self.currency,
            "saved": self.saved,
            "one_pool": self.one_pool,
            "restarts": self.restarts,
            "sites": [dict(row) for row in self.rows()],
            "worse_off": [self.sites[number].site for number in self.settlement.worse_off],
            "stable": self.verdict.stable,
            "can_be_stable": self.verdict.can_be_stable,
            "verdict": list(self.verdict.words(self.rule, self.currency)),
            "leaving": [
                {"sites": list(self.verdict.game.members(one.coalition)), "gain": one.gain} for one in self.verdict.leaving
            ],
            "lent_hours": self.flows.hours.tolist(),
            "notes": list(self.notes),
        }


def answer(
    federation: Federation, rule: str = "credits", speed: Speed | None = None, progress: Progress | None = None
) -> FederationAnswer:
    """Evaluate sharing for every site of a federation.

    Args:
        rule: who is served first and who pays whom: one of ``RULES``.
        speed: prediction for models whose speed the federation does not state.
        progress: called with the number of simulated coalitions and their total.

    Raises:
        UserError: an unknown rule; a trace that is too long for prices.
    """
    rule = known_name("rule", rule, RULES)
    savings = savings_under(federation, rule, speed)
    count = len(federation.sites)
    groups = few_groups(count) if RULES[rule].by_auction and count > MOST_BY_AUCTION else None
    if groups is not None or count <= MOST_ENUMERATED:
        savings.simulate_all(groups, progress)
    settlement = settle(savings, rule)
    verdict = judge(savings.game(), settlement.shares, groups)
    together = settlement.outcome
    pooled = Savings.of(federation, SharingRules(one_pool=True), speed)
    flows = flows_of(savings.demand, together, len(federation.sites))
    alone = np.array([savings.total(1 << number) for number in range(len(federation.sites))])
    sites = tuple(_site(savings, settlement, flows, number, alone[number], together) for number in range(len(federation.sites)))
    return FederationAnswer(
        rule=settlement.rule,
        currency=federation.currency,
        sites=sites,
        saved=float(settlement.saved.sum()),
        one_pool=pooled.worth(pooled.everyone),
        restarts=int(together.restarts.sum()),
        verdict=verdict,
        settlement=settlement,
        flows=flows,
        savings=savings,
        notes=_notes(federation, savings, verdict, settlement, settlement.rule),
    )


def few_groups(sites: int) -> list[int]:
    """Return each single site, and everyone without one site."""
    everyone = (1 << sites) - 1
    return sorted({mask for site in range(sites) for mask in (1 << site, everyone ^ 1 << site)})


def _site(
    savings: Savings, settlement: Settlement, flows: LendingFlows, number: int, alone: float, together: FederationOutcome
) -> SiteAnswer:
    site, demand = savings.federation.sites[number], savings.demand
    mine = demand.site == number
    span = float(demand.arrival_s.max() - demand.arrival_s.min()) or 1.0
    at_home = flows.hours[number, number]
    return SiteAnswer(
        site=site.name,
        devices=site.fleet.devices,
        jobs=len(site.jobs),
        load=float((demand.devices * demand.duration_s)[mine].sum() / span / site.fleet.devices),
        wait_alone_s=mean_wait_s(demand, savings.outcome(1 << number), number),
        wait_together_s=mean_wait_s(demand, together, number),
        cost_alone=float(alone),
        cost_together=float(alone - settlement.saved[number]),
        received=float(settlement.received[number]),
        share=float(settlement.shares[number]),
        standard_error=float(settlement.standard_error[number]),
        lent_hours=float(flows.hours[number].sum() - at_home),
        borrowed_hours=float(flows.hours[:, number].sum() - at_home),
    )


def _notes(
    federation: Federation, savings: Savings, verdict: StabilityVerdict, settlement: Settlement, rule: str
) -> tuple[str, ...]:
    notes = []
    bytes_cost = float(costs_of(federation, savings.demand, settlement.outcome).wan.sum())
    if bytes_cost > max(float(settlement.saved.sum()), 0.0) and not RULES[rule].by_auction:
        notes.append(
            f"Moving data costs {priced(bytes_cost, federation.currency)}, more than sharing saves: jobs start where they end "
            "first, whatever that costs. The auction counts it: try that rule."
        )
    if not federation.wan_bytes_per_s:
        notes.append("The link between sites is unknown: data sets arrive at once. State wan and data.")
    elif not savings.demand.data_bytes.any():
        notes.append("No data set's size is stated, so no data moves. State data.")
    types = {group.device for site in federation.sites for group in site.fleet.groups}
    if len(types) > 1 and ((savings.demand.speed == 0).any(axis=1)).any():
        notes.append("Some jobs cannot run on some device types, or their speed there is unknown: they stay where it is known.")
    if not verdict.least.whole:
        which = ": each site alone, and all but one" if RULES[rule].by_auction else ""
        notes.append(f"{len(federation.sites)} sites have too many groups: {verdict.compared:,} were compared{which}.")
    return tuple(notes)
