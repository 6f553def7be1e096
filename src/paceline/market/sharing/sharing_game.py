"""SC-Share's game, in which each site decides how much it shares: equilibria and the price of anarchy.

Lin, Pal, Paolieri, Golubchik, SC-Share, ICDCS 2017 (arXiv 1703.10318): each site chooses how many of its devices others may
borrow, pays the federation's price C^G for what it borrows, and is paid C^G for what it lends. The formulas are recalled, not
checked against the paper: cost C_i = P_i C^P + (O_i - I_i) C^G with P_i the work that goes to the public cloud at C^P; utility
U_i = (C_i^0 - C_i) / (rho_i - rho_i^0)^gamma, with C^0 and rho^0 those of a site alone. Here P_i C^P may be any cost of a site,
such as that of its jobs' waiting. Without extra use of a site's devices gamma does not count: there is nothing to divide by.

Two welfares are told apart. The saving is in money: the sum of the sites' C_i^0 - C_i, in which payments between sites cancel
(values minus costs, and the value of the work does not depend on who runs it). SC-Share's welfare weighs each site's utility by
the devices that it offers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, shown
from paceline.market.sharing.tabu_search import tabu_search

Profile = tuple[int, ...]
"""Devices that each site shares."""
MOST_ROUNDS = 100
MOST_ENUMERATED = 20_000
"""Most profiles that are all tried for the largest welfare and for equilibria; beyond, both are searched."""
MOST_TRIED = 16
"""Most choices of a site that are all tried for a best response; beyond, tabu search comes first."""
_LEAST_USE = 1e-9
_EQUAL = 1e-9
"""Largest relative difference between two equal utilities."""
_ROUNDING = 1e-12
"""Smallest gain that counts as an improvement, relative to the largest cost alone or a utility."""


@dataclass(frozen=True)
class Performance:
    """Costs and use of the sites under a profile; arrays of shape (sites,).

    Attributes:
        cost: per hour, without payments inside the federation: of the public cloud, P_i C^P, or any other cost.
        borrowed, lent: devices on average. ``utilisation``: mean busy share of its devices.
    """

    cost: Array
    borrowed: Array
    lent: Array
    utilisation: Array


@dataclass(frozen=True)
class SharingGame:
    """Sites that choose how much to share.

    Args:
        performance: performance of a profile; called once each.
        choices: numbers that each site may share, ascending from 0.
        price: C^G, of a device and hour inside the federation. ``cloud_price``: C^P, in the public cloud.
        gamma: 0: only cost counts; 1: saving a unit of extra use.

    Raises:
        UserError: prices or a gamma of no use, a site without choices.
    """

    performance: Callable[[Profile], Performance]
    choices: tuple[tuple[int, ...], ...]
    price: float
    gamma: float = 0.0
    cloud_price: float = math.inf
    _known: dict[Profile, Performance] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.price <= self.cloud_price or self.price == math.inf:
            raise UserError(
                f"a price of {shown(self.price)} with {shown(self.cloud_price)} in the cloud",
                "give a price from 0 up to that of the public cloud: above it no site borrows",
            )
        if not 0 <= self.gamma <= 1:
            raise UserError(
                f"gamma is {shown(self.gamma)}", "give a number from 0 (cost alone) to 1 (saving a unit of extra use)"
            )
        if not self.choices or not all(each and each[0] == 0 and list(each) == sorted(set(each)) for each in self.choices):
            raise UserError("a site without choices", "give each site what it may share, ascending from 0")

    @property
    def nobody(self) -> Profile:
        """Profile in which no site shares."""
        return (0,) * len(self.choices)

    def at(self, profile: Profile) -> Performance:
        """Return the performance of a profile."""
        if profile not in self._known:
            self._known[profile] = self.performance(profile)
        return self._known[profile]

    def costs(self, profile: Profile) -> Array:
        """Return C_i, the hourly costs of the sites."""
        found = self.at(profile)
        return found.cost + (found.borrowed - found.lent) * self.price

    def utilities(self, profile: Profile) -> Array:
        """Return U_i, the utilities of the sites; all are 0 in the profile without sharing."""
        saved = self.costs(self.nobody) - self.costs(profile)
        more = self.at(profile).utilisation - self.at(self.nobody).utilisation
        divisor = np.where(more > _LEAST_USE, np.maximum(more, _LEAST_USE) ** self.gamma, 1.0)
        return saved / divisor

    def saving(self, profile: Profile) -> float:
        """Return the money that all sites together save per hour. Payments inside the federation cancel."""
        return float(self.at(self.nobody).cost.sum() - self.at(profile).cost.sum())

    def best_response(self, profile: Profile, site: int, whole: bool = True) -> int:
        """Return the best response of one site: its present choice if nothing is better, else the smallest best one.

        Args:
            whole: try every choice; False: search if there are more than ``MOST_TRIED``.
        """
        now = float(self.utilities(profile)[site])
        options = self._tried(profile, site, lambda other: float(self.utilities(other)[site]), whole)
        best = max(options.values())
        if best <= now + self.rounding(now):
            return profile[site]
        return min(shared for shared, value in options.items() if value >= best - self.rounding(best))

    def better_for_all(self, profile: Profile, site: int, value: Callable[[Profile], float]) -> Profile:
        """Return the profile of the largest value found by changing one site's choice."""
        options = self._tried(profile, site, value, False)
        best = max(options, key=lambda shared: options[shared])
        return _replaced(profile, site, best) if options[best] > options[profile[site]] else profile

    def _tried(self, profile: Profile, site: int, value: Callable[[Profile], float], whole: bool) -> dict[int, float]:
        """Return the values of a site's choices with the others fixed, in ascending order."""
        choices = self.choices[site]
        if whole or len(choices) <= MOST_TRIED:
            return {shared: value(_replaced(profile, site, shared)) for shared in choices}
        at = tabu_search(
            lambda place: value(_replaced(profile, site, choices[place])), len(choices), choices.index(profile[site])
        )
        return {choices[place]: at[place] for place in sorted(at)}

    def rounding(self, utility: float | Array) -> Array:
        """Rounding error of a utility."""
        return np.asarray(_ROUNDING * np.maximum(np.abs(self.costs(self.nobody)).max(), np.abs(utility)))

    @property
    def profiles(self) -> int:
        """Number of profiles."""
        return math.prod(len(each) for each in self.choices)


@dataclass(frozen=True)
class Equilibrium:
    """End of repeated best responses.

    Attributes:
        profile: number that each shares. ``found``: no site gains by a change; else the responses repeat ``cycle`` or go on.
        utilities, costs: utilities and costs of each site there. ``rounds``: number of rounds.
    """

    profile: Profile
    found: bool
    utilities: Array
    costs: Array
    rounds: int
    cycle: tuple[Profile, ...] = ()


@dataclass(frozen=True)
class Optimum:
    """Profile of the largest welfare, weighted or in money.

    ``whole``: True if every profile was tried, False for the best of a search.
    """

    profile: Profile
    welfare: float
    whole: bool


def equilibrium(game: SharingGame, start: Profile | None = None, most: int = MOST_ROUNDS) -> Equilibrium:
    """Let each site in turn take its best response until none changes: a pure Nash equilibrium.

    Sites with many choices search them, as in SC-Share. At the end every choice is tried once, so that no site gains by any.
    """
    profile = game.nobody if start is None else start
    seen, whole = [profile], all(len(each) <= MOST_TRIED for each in game.choices)
    thorough = whole
    for rounds in range(1, most + 1):
        before = profile
        for site in range(len(game.choices)):
            profile = _replaced(profile, site, game.best_response(profile, site, thorough))
        if profile == before and thorough:
            return Equilibrium(profile, True, game.utilities(profile), game.costs(profile), rounds)
        thorough = whole or profile == before
        if profile == before:
            continue
        if profile in seen:
            cycle = tuple(seen[seen.index(profile) :])
            return Equilibrium(profile, False, game.utilities(profile), game.costs(profile), rounds, cycle)
        seen.append(profile)
    return Equilibrium(profile, False, game.utilities(profile), game.costs(profile), most)


def welfare(utilities: Sequence[float] | Array, shared: Profile, alpha: float) -> float:
    """Return the alpha-fair welfare, weighted by shared devices: 0 the sum, 1 proportional fairness, inf the minimum.

    SC-Share's welfare is the sum of S_i U_i^(1 - alpha) / (1 - alpha), of S_i log U_i at 1. The weights S_i differ between
    profiles, so at 1 the order of profiles depends on the unit of money, and from 1 on the 0 of no sharing exceeds negative
    values. Therefore the welfare here is the equivalent income (Atkinson, On the measurement of inequality, 1970): the uniform
    utility per shared device with the same alpha-fair mean, times the devices shared.

        sum S_i (sum S_i U_i^(1 - alpha) / sum S_i)^(1 / (1 - alpha))        at 1: sum S_i exp(sum S_i log U_i / sum S_i)

    It is in the unit of the utilities and proportional to them, so orders and ratios do not depend on the currency. At 0 it is
    SC-Share's sum; at infinity the smallest utility, as there. It has SC-Share's order if all sites share equally. Sites that
    share nothing do not count. With alpha above 0, a site that loses makes it minus infinity.

    Raises:
        UserError: alpha below 0.
    """
    if math.isnan(alpha) or alpha < 0:
        raise UserError(f"alpha is {shown(alpha)}", "give 0 (the sum), 1 (proportional), larger ones, or infinity (the least)")
    values, weights = np.asarray(utilities, float), np.asarray(shared, float)
    counted = weights > 0
    if not counted.any():
        return 0.0
    values, weights = values[counted], weights[counted]
    if alpha == math.inf:
        return float(values.min())
    if alpha == 0:
        return float(weights @ values)
    least, total = float(values.min()), float(weights.sum())
    if least < 0:
        return -math.inf
    if least == 0 and alpha >= 1:
        return 0.0
    unit = least if alpha > 1 else float(values.max()) or 1.0  # no power is beyond the largest number
    relative = values / unit
    if abs(alpha - 1) < 1e-9:
        return total * unit * math.exp(float(weights @ np.log(relative)) / total)
    return float(total * unit * (float(weights @ relative ** (1 - alpha)) / total) ** (1 / (1 - alpha)))


def optimum(game: SharingGame, alpha: float = 0.0) -> Optimum:
    """Return the profile of the largest weighted welfare: among all up to ``MOST_ENUMERATED``, else by coordinate search from
    no sharing, full sharing and the equilibrium."""
    return _largest(game, lambda profile: welfare(game.utilities(profile), profile, alpha))


def most_saved(game: SharingGame) -> Optimum:
    """Return the profile of the largest saving in money, found as by ``optimum``; of equal ones the first that shares least."""
    rounding = float(game.rounding(0.0))
    found = _largest(game, game.saving)
    if not found.whole:
        return found
    equal = (profile for profile in itertools.product(*game.choices) if game.saving(profile) >= found.welfare - rounding)
    return Optimum(min(equal, key=lambda profile: (sum(profile), profile)), found.welfare, True)


def _largest(game: SharingGame, value: Callable[[Profile], float]) -> Optimum:
    if game.profiles <= MOST_ENUMERATED:
        best = max(itertools.product(*game.choices), key=value)
        return Optimum(best, value(best), True)
    starts = (game.nobody, tuple(each[-1] for each in game.choices), equilibrium(game).profile)
    best = max((_climbed(game, start, value) for start in starts), key=value)
    return Optimum(best, value(best), False)


def _climbed(game: SharingGame, profile: Profile, value: Callable[[Profile], float]) -> Profile:
    while True:
        before = profile
        for site in range(len(game.choices)):
            profile = game.better_for_all(profile, site, value)
        if profile == before:
            return profile


@dataclass(frozen=True)
class Equilibria:
    """Pure Nash equilibria of a game, and its largest welfare.

    Attributes:
        profiles: profiles of the equilibria found, the largest saving in money first, then those that share least.
        savings: money that all sites save per hour at each. ``welfares``: weighted welfares of each.
        groups: indices of equilibria with equal utilities of every site and equal savings, by the first of each group.
        whole: every profile was tried, so these are all. False: only ends of best responses.
        responses: ends of best responses, by a name of the start; the first starts without sharing.
        most_saved: the profile of the largest saving. ``best``: the profile of the largest weighted welfare.
    """

    profiles: tuple[Profile, ...]
    savings: tuple[float, ...]
    welfares: tuple[float, ...]
    groups: tuple[tuple[int, ...], ...]
    whole: bool
    responses: Mapping[str, Equilibrium]
    most_saved: Optimum
    best: Optimum

    @property
    def price_of_anarchy(self) -> float:
        """Largest saving in money / saving at the worst equilibrium found (Koutsoupias and Papadimitriou 1999).

        inf if that equilibrium saves nothing; NaN if no equilibrium was found, or no profile saves.
        """
        return _ratio(self.most_saved, min(self.savings, default=math.nan))

    @property
    def price_of_stability(self) -> float:
        """Largest saving in money / saving at the best equilibrium found; special values as for ``price_of_anarchy``."""
        return _ratio(self.most_saved, max(self.savings, default=math.nan))

    @property
    def weighted_price_of_anarchy(self) -> float:
        """Largest weighted welfare / weighted welfare of the worst equilibrium found; special values as in money."""
        return _ratio(self.best, min(self.welfares, default=math.nan))

    @property
    def weighted_price_of_stability(self) -> float:
        """Largest weighted welfare / weighted welfare of the best equilibrium found; special values as in money."""
        return _ratio(self.best, max(self.welfares, default=math.nan))

    def reached_from(self, profile: Profile) -> tuple[str, ...]:
        """Return the starts from which best responses end in a profile."""
        return tuple(start for start, end in self.responses.items() if end.found and end.profile == profile)


def _ratio(best: Optimum, there: float) -> float:
    if math.isnan(there) or not 0 < best.welfare < math.inf:
        return math.nan
    return best.welfare / there if there > 0 else math.inf


def equilibria(game: SharingGame, alpha: float = 0.0) -> Equilibria:
    """Find the equilibria of a game and its largest welfare, in money and weighted.

    Up to ``MOST_ENUMERATED`` profiles each is tried, and every pure equilibrium is found. Beyond, best responses start from no
    sharing, full sharing, half of it, and the profile of the largest weighted welfare found.

    Raises:
        UserError: alpha below 0.
    """
    best = optimum(game, alpha)
    starts = {
        "nothing shared": game.nobody,
        "everything shared": tuple(each[-1] for each in game.choices),
        "half shared": tuple(each[len(each) // 2] for each in game.choices),
        "the largest weighted welfare": best.profile,
    }
    responses = {name: equilibrium(game, start) for name, start in starts.items()}
    whole = game.profiles <= MOST_ENUMERATED
    found = set(_every_equilibrium(game) if whole else (end.profile for end in responses.values() if end.found))
    rounding = float(game.rounding(0.0))
    savings = {profile: _rounded(game.saving(profile), rounding) for profile in found}
    welfares = {profile: welfare(game.utilities(profile), profile, alpha) for profile in found}
    order = sorted(found, key=lambda profile: (-savings[profile], sum(profile), profile))
    return Equilibria(
        tuple(order),
        tuple(savings[profile] for profile in order),
        tuple(welfares[profile] for profile in order),
        _equal_equilibria(game, order, savings),
        whole,
        responses,
        most_saved(game),
        best,
    )


def _rounded(saving: float, rounding: float) -> float:
    """Return a saving, or 0 if rounding errors explain it."""
    return saving if abs(saving) > rounding else 0.0


def _equal_equilibria(
    game: SharingGame, profiles: Sequence[Profile], savings: Mapping[Profile, float]
) -> tuple[tuple[int, ...], ...]:
    """Group the indices of profiles in which each site has the same utility and all save the same, up to rounding."""
    groups: list[list[int]] = []
    figures = [np.array([*game.utilities(profile), savings[profile]]) for profile in profiles]
    for index, figure in enumerate(figures):
        for group in groups:
            if (np.abs(figures[group[0]] - figure) <= _EQUAL * np.maximum(np.abs(figure), float(game.rounding(0.0)))).all():
                group.append(index)
                break
        else:
            groups.append([index])
    return tuple(tuple(group) for group in groups)


def _every_equilibrium(game: SharingGame) -> list[Profile]:
    """Return the profiles in which no site gains by another choice."""
    profiles = list(itertools.product(*game.choices))
    counts = [len(each) for each in game.choices]
    utilities = np.array([game.utilities(profile) for profile in profiles]).reshape(*counts, len(counts))
    stays = np.ones(counts, bool)
    for site in range(len(counts)):
        now = utilities[..., site]
        stays &= now.max(axis=site, keepdims=True) <= now + game.rounding(now)
    return [profile for profile, holds in zip(profiles, stays.ravel(), strict=True) if holds]


def _replaced(profile: Profile, site: int, shared: int) -> Profile:
    return (*profile[:site], shared, *profile[site + 1 :])
