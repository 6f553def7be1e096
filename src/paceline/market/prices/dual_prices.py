"""Prices of resources that keep every group of sites together: the duals of the linear program that pools all resources.

Owen, On the core of linear production games, Mathematical Programming 9 (1975). The abstract was at hand, not the text. The
proof is by duality: prices that are feasible for everyone's dual are feasible for each coalition's dual, so a coalition's
resources cost at least what it can produce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.market.game.game import Game

_TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
_UNBOUNDED = (3, 4)
"""What HiGHS returns where an objective has no bound: unbounded, or unbounded or infeasible. Each program here is feasible."""


@dataclass(frozen=True)
class DualPrices:
    """What a unit of each resource is worth, and what each player gets for its own.

    Args:
        prices: of each resource, shape (m,), from 0 up, in value a unit.
        shares: of each player, shape (n,): its resources at these prices. They are a core allocation and sum to ``worth``.
        worth: what everyone produces together.
        plan: how much of each activity, shape (k,).
        lowest, highest: of each price over all dual optima, shape (m,). The highest is infinite where nobody has the resource.
        unique: the price of each resource that somebody has is unique. Otherwise the optimum is degenerate: the prices are one
            corner of the legal ones, all legal ones give core allocations, and the choice among them favours some sites.
    """

    prices: Array
    shares: Array
    worth: float
    plan: Array
    lowest: Array
    highest: Array
    unique: bool


def _table(given: Sequence[Any] | Array, shape: tuple[int, ...], what: str) -> Array:
    try:
        numbers = np.array(given, dtype=float)
    except (TypeError, ValueError):
        raise UserError(f"{what} are no table of numbers", f"give {' x '.join(map(str, shape))} numbers") from None
    if numbers.shape != shape:
        raise UserError(f"{what} are a table of {numbers.shape}", f"give {' x '.join(map(str, shape))} numbers")
    if not np.isfinite(numbers).all():
        raise UserError(f"{what} have an unknown or endless number", "give finite numbers")
    return numbers


class LinearProduction:
    """Sites that pool resources, such as GPU-hours of each type, for activities, such as jobs of a kind on a type.

    A coalition's worth is max value @ x subject to use @ x <= the sum of its members' resources, x >= 0.

    Args:
        players: their names, n of them.
        value: of a unit of each activity, shape (k,).
        use: of each resource by a unit of each activity, shape (m, k).
        resources: of each player, shape (n, m), not negative.

    Raises:
        UserError: a table of another shape, a number that is not finite, a negative resource, or no resource.
    """

    def __init__(
        self,
        players: Sequence[str],
        value: Sequence[float] | Array,
        use: Sequence[Sequence[float]] | Array,
        resources: Sequence[Sequence[float]] | Array,
    ) -> None:
        self.players = tuple(players)
        if not len(use):
            raise UserError("a production without resources", "name at least one")
        self.value = _table(value, (len(value),), "the values")
        self.use = _table(use, (len(use), len(self.value)), "the uses")
        self.resources = _table(resources, (len(self.players), len(self.use)), "the resources")
        if (self.resources < 0).any():
            player, resource = (int(i) for i in np.argwhere(self.resources < 0)[0])
            least = self.resources[player, resource]
            raise UserError(f"{self.players[player]} has {least:g} of resource {resource}", "give each site 0 or more of each")
        # HiGHS has absolute tolerances: what everyone has of a resource, and the best activity, count as 1.
        pooled = self.resources.sum(axis=0)
        self._unit = np.where(pooled > 0, pooled, 1.0)
        self._money = float(np.abs(self.value).max(initial=0.0)) or 1.0

    def _solve(self, pooled: Array) -> tuple[float, Array, Array]:
        """Worth, plan and prices of pooled resources, shape (m,)."""
        if not len(self.value):
            return 0.0, np.zeros(len(self.value)), np.zeros(len(self.use))
        answer = linprog(
            -self.value / self._money,
            A_ub=self.use / self._unit[:, None],
            b_ub=pooled / self._unit,
            method="highs",
            options=_TIGHT,
        )
        if answer.status in _UNBOUNDED:
            free = np.flatnonzero((self.value > 0) & (self.use <= 0).all(axis=0))
            which = f"activity {free[0]} has a value and uses nothing" if len(free) else "activities make what they use"
            raise UserError(f"value without end: {which}", "let each activity of value use some resource")
        if answer.status != 0:
            raise RuntimeError(f"HiGHS found no plan: {answer.message}")
        prices = np.maximum(-answer.ineqlin.marginals, 0.0) * self._money / self._unit
        return -float(answer.fun) * self._money, answer.x, prices

    def worth(self, coalition: int) -> float:
        """What the members of a coalition (a mask) produce together. Raises UserError where that has no end."""
        members = [bool(coalition >> i & 1) for i in range(len(self.players))]
        return self._solve(self.resources[members].sum(axis=0))[0]

    def game(self) -> Game:
        """The game of these worths. Raises UserError as of ``Game``."""
        return Game(self.players, self.worth)

    def _range(self, worth: float) -> tuple[Array, Array]:
        """The lowest and the highest price of each resource over all dual optima."""
        count = len(self.use)
        pooled = self.resources.sum(axis=0) / self._unit
        lowest, highest = np.zeros(count), np.where(pooled > 0, 0.0, np.inf)
        for resource in range(count if len(self.value) else 0):
            for sign, ends in ((1.0, lowest), (-1.0, highest)):
                answer = linprog(
                    sign * np.eye(count)[resource],
                    A_ub=np.vstack([-(self.use / self._unit[:, None]).T, pooled]),
                    b_ub=np.append(-self.value / self._money, worth / self._money * (1 + 1e-12)),
                    method="highs",
                    options=_TIGHT,
                )
                if answer.status in _UNBOUNDED:
                    ends[resource] = np.inf
                else:
                    ends[resource] = sign * float(answer.fun) * self._money / self._unit[resource]
        return lowest, highest

    def prices(self) -> DualPrices:
        """The dual prices of everyone's pooled resources, and what each player's resources are worth at them.

        Raises:
            UserError: the value has no end.
        """
        pooled = self.resources.sum(axis=0)
        worth, plan, prices = self._solve(pooled)
        lowest, highest = self._range(worth)
        matters = pooled > 0
        spread = (highest[matters] - lowest[matters]) * pooled[matters]
        unique = bool((spread <= 1e-7 * max(abs(worth), self._money)).all())
        return DualPrices(prices, self.resources @ prices, worth, plan, lowest, highest, unique)


__all__ = ["DualPrices", "LinearProduction"]
