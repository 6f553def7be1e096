"""The sharing game on a federation's traces: each site decides how many devices it lends, at an internal price."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.errors import UserError
from paceline.market.federation.flows import flows_of
from paceline.market.game.savings import Savings
from paceline.market.sharing.sharing_game import Equilibria, Equilibrium, Optimum, Performance, Profile, SharingGame, equilibria
from paceline.tabular import Row, Tabular

CHOICES = 9
"""Default number of choices of a site, including 0 and all its devices."""


@dataclass(frozen=True, kw_only=True)
class SharingAnswer(Tabular):
    """Equilibria of sites that each decide for themselves.

    Attributes:
        names, devices: names and devices of the sites. ``profiles``: number of profiles of the game.
        equilibria: equilibria of the game, with its largest welfare.
    """

    names: tuple[str, ...]
    devices: tuple[int, ...]
    currency: str
    price: float
    gamma: float
    alpha: float
    profiles: int
    equilibria: Equilibria

    @property
    def found(self) -> Equilibrium:
        """Result of best responses that start without sharing."""
        return next(iter(self.equilibria.responses.values()))

    @property
    def best(self) -> Optimum:
        """Largest saving of all sites, in money."""
        return self.equilibria.most_saved

    def rows(self) -> Sequence[Row]:
        """Return one row per site; money per hour."""
        return [
            {
                "site": name,
                "devices": devices,
                "shares": self.found.profile[site],
                "cost_per_hour": float(self.found.costs[site]),
                "utility": float(self.found.utilities[site]),
                "best_shares": self.best.profile[site],
            }
            for site, (name, devices) in enumerate(zip(self.names, self.devices, strict=True))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain values."""
        return {
            "price": self.price,
            "gamma": self.gamma,
            "alpha": self.alpha,
            "currency": self.currency,
            "equilibrium": self.found.found,
            "rounds": self.found.rounds,
            "price_of_anarchy": self.equilibria.price_of_anarchy,
            "price_of_stability": self.equilibria.price_of_stability,
            "best_saving_per_hour": self.best.welfare,
            "weighted_price_of_anarchy": self.equilibria.weighted_price_of_anarchy,
            "weighted_price_of_stability": self.equilibria.weighted_price_of_stability,
            "best_weighted_welfare": self.equilibria.best.welfare,
            "best_weighted_shares": list(self.equilibria.best.profile),
            "equilibria": [self._equilibrium(index) for index in range(len(self.equilibria.profiles))],
            "equal_equilibria": [list(group) for group in self.equilibria.groups],
            "profiles": self.profiles,
            "equilibria_are_all": self.equilibria.whole,
            "best_is_of_all": self.best.whole,
            "sites": [dict(row) for row in self.rows()],
        }

    def _equilibrium(self, index: int) -> dict[str, Any]:
        found = self.equilibria
        profile = found.profiles[index]
        return {
            "shares": list(profile),
            "saving_per_hour": found.savings[index],
            "weighted_welfare": found.welfares[index],
            "reached_from": list(found.reached_from(profile)),
        }


def simulated_game(savings: Savings, price: float, gamma: float = 0.0, choices: int = CHOICES) -> SharingGame:
    """Return the game in which a site chooses how many of its devices others may hold at a time.

    Args:
        choices: most choices of a site, evenly spaced from 0 to all. With one more than its devices every integer is a choice;
            then chance in the trace decides between neighbours, and often no equilibrium exists.

    Raises:
        UserError: a price above that of a site's public cloud, or below 0; less than two choices.
    """
    if choices < 2:
        raise UserError(f"{choices} choices of a site", "give a whole number from 2 (nothing or everything) up")
    sites = savings.federation.sites
    span_h = span_hours(savings)

    def performance(profile: Profile) -> Performance:
        changed = savings.changed(rules=replace(savings.rules, lends=np.array(profile, np.int64)))
        outcome = changed.outcome(savings.everyone)
        flows = flows_of(savings.demand, outcome, len(sites), periods=1)
        at_home = np.diag(flows.hours)
        devices = np.array([site.fleet.devices for site in sites])
        return Performance(
            changed.costs(savings.everyone).total / span_h,
            (flows.hours.sum(axis=0) - at_home) / span_h,
            (flows.hours.sum(axis=1) - at_home) / span_h,
            flows.hours.sum(axis=1) / span_h / devices,
        )

    clouds = [site.cloud_price for site in sites if site.cloud_price and site.cloud_after_s < math.inf]
    amounts = tuple(_amounts(site.fleet.devices, choices) for site in sites)
    return SharingGame(performance, amounts, price, gamma, min(clouds, default=math.inf))


def decide(savings: Savings, price: float, gamma: float = 0.0, alpha: float = 0.0, choices: int = CHOICES) -> SharingAnswer:
    """Find the game's equilibria and its largest welfare. Raises UserError as ``simulated_game`` and ``equilibria``."""
    game = simulated_game(savings, price, gamma, choices)
    return SharingAnswer(
        names=savings.federation.names,
        devices=tuple(site.fleet.devices for site in savings.federation.sites),
        currency=savings.federation.currency,
        price=price,
        gamma=gamma,
        alpha=alpha,
        profiles=game.profiles,
        equilibria=equilibria(game, alpha),
    )


def span_hours(savings: Savings) -> float:
    """Return the hours from the first arrival to the last."""
    return max(float(savings.demand.arrival_s.max() - savings.demand.arrival_s.min()), 1.0) / 3600


def _amounts(devices: int, choices: int) -> tuple[int, ...]:
    steps = min(choices - 1, devices)  # more choices than devices add no other number
    return tuple(sorted({round(devices * part / steps) for part in range(steps + 1)}))
