"""The savings game of a federation: the simulated saving of each group of sites that shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from paceline.market.federation.costs import Costs, costs_of, mean_wait_s
from paceline.market.federation.demand import Speed, demand_of, one_pool, rules_of
from paceline.market.federation.federation_state import FederationDemand, FederationOutcome, Rules
from paceline.market.federation.simulation import simulate
from paceline.market.federation.site import Federation
from paceline.market.game.game import Game

Progress = Callable[[int, int], None]
"""Callback with the number of simulated coalitions and their total."""


@dataclass(frozen=True)
class SharingRules:
    """Rules by which members of a coalition share their devices.

    Attributes:
        by_credit: the site that has lent most is served first, not the earliest job.
        home_first: a site's own jobs take its devices first.
        one_pool: devices are one pool and jobs span sites: a bound, not a federation.
        serve: another way to serve a coalition's jobs, such as auctions.
    """

    by_credit: bool = False
    home_first: bool = False
    one_pool: bool = False
    serve: Callable[[Savings, int], FederationOutcome] | None = None


@dataclass(frozen=True)
class Savings:
    """Simulated costs of coalitions, each simulated at most once."""

    federation: Federation
    sharing: SharingRules
    demand: FederationDemand
    rules: Rules
    _totals: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, federation: Federation, sharing: SharingRules | None = None, speed: Speed | None = None) -> Savings:
        """Return the savings game of a federation's jobs.

        Args:
            speed: prediction for models without a stated speed; None: they run only on their site's device types.
        """
        how = sharing or SharingRules()
        rules = rules_of(federation, by_credit=how.by_credit, home_first=how.home_first)
        return cls(federation, how, demand_of(federation, speed), rules)

    def changed(self, *, demand: FederationDemand | None = None, rules: Rules | None = None) -> Savings:
        """Return the same sites with other jobs or rules."""
        return replace(self, demand=demand or self.demand, rules=rules or self.rules, _totals={})

    @property
    def everyone(self) -> int:
        """The coalition of all sites."""
        return (1 << len(self.federation.sites)) - 1

    def outcome(self, members: int) -> FederationOutcome:
        """Simulate a coalition's jobs."""
        if self.sharing.serve is not None:
            return self.sharing.serve(self, members)
        return simulate(self._demand_for(members), self.rules, members)

    def costs(self, members: int) -> Costs:
        """Return the costs of each site of a coalition; 0 for the others."""
        return costs_of(self.federation, self._demand_for(members), self.outcome(members))

    def total(self, members: int) -> float:
        """Return the total costs of a coalition."""
        if members not in self._totals:
            self._totals[members] = float(self.costs(members).total.sum())
        return self._totals[members]

    def worth(self, members: int) -> float:
        """Return the saving of a coalition over its members alone."""
        alone = sum(self.total(1 << site) for site in range(len(self.federation.sites)) if members >> site & 1)
        return alone - self.total(members)

    def game(self) -> Game:
        """Return the game. Coalitions are simulated on demand; ``simulate_all`` uses all processors."""
        return Game(self.federation.names, self.worth)

    def simulate_all(self, coalitions: Iterable[int] | None = None, progress: Progress | None = None) -> None:
        """Simulate coalitions on all processors; None: every one."""
        asked = range(1, self.everyone + 1) if coalitions is None else coalitions
        wanted = [members for members in asked if members not in self._totals]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done, _ in enumerate(pool.map(self.total, wanted), start=1):
                if progress:
                    progress(done, len(wanted))

    def mean_wait_s(self, members: int) -> float:
        """Return the mean seconds from arrival to first start over all jobs of a coalition."""
        return mean_wait_s(self.demand, self.outcome(members))

    def _demand_for(self, members: int) -> FederationDemand:
        return one_pool(self.federation, self.demand, members) if self.sharing.one_pool else self.demand
