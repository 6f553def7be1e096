"""The core: divisions that no group of sites can improve on by itself. The least core and the nucleolus choose one division.

The excess of a coalition C at a division x is e(C) = v(C) - x(C): the joint gain of its members when they leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from paceline.array_types import Array, Bools
from paceline.errors import UserError, check_count, shown
from paceline.market.game.game import MOST_ENUMERATED, Game

TOLERANCE = 1e-9
"""Smallest gain that counts, as a share of the total saving."""

MOST_VALUED = 4096
"""Default number of coalitions valued if there are too many to value all."""

_STRICT = 1e-7
"""Smallest dual that counts as positive. Duals of a level sum to 1."""


@dataclass(frozen=True)
class Blocking:
    """Coalition that does better by itself, as a mask, with the joint gain of its members."""

    coalition: int
    gain: float


@dataclass(frozen=True)
class CoreAllocation:
    """A division of v(N) and how well it holds against coalitions that may leave.

    Args:
        shares: shares of each player, shape (n,), in the unit of the game.
        eps: the largest excess of the proper coalitions checked. Positive: that coalition gains this much when it leaves. At
            most 0: no coalition checked gains. Negative in the least core: the core has an interior. 0 for a single player.
        checked: number of proper coalitions compared.
        whole: all 2^n - 2 were compared. Otherwise ``eps`` is a lower bound, and an unchecked coalition may gain more.
        individually_rational: no player gets less than alone.
    """

    shares: Array
    eps: float
    checked: int
    whole: bool
    individually_rational: bool


def _divided(game: Game, shares: Sequence[float] | Array) -> Array:
    amounts = np.asarray(shares, dtype=float)
    if amounts.shape != (len(game.players),) or not np.isfinite(amounts).all():
        raise UserError(f"the shares {shown(shares)}", f"give {len(game.players)} finite numbers, one a site")
    return amounts


def _rows(game: Game, masks: Sequence[int]) -> Array:
    """Return a matrix of 1 where player i (column) is in the coalition (row), else 0."""
    players = range(len(game.players))
    return np.array([[mask >> i & 1 for i in players] for mask in masks], dtype=float).reshape(-1, len(players))


def _values(game: Game, masks: Sequence[int]) -> Array:
    values = np.array([game.value(mask) for mask in masks])
    if not np.isfinite(values).all():
        members = ", ".join(game.members(masks[int(np.flatnonzero(~np.isfinite(values))[0])]))
        raise UserError(f"the coalition of {members} has no finite value", "give each coalition a finite value")
    return values


def _legal(game: Game, coalitions: Iterable[int]) -> list[int]:
    masks = list(coalitions)
    wrong = next((mask for mask in masks if not 0 <= mask <= game.everyone), None)
    if wrong is not None:
        raise UserError(f"the coalition {shown(wrong)}", f"give a mask from 0 to {game.everyone:,}")
    return masks


def blocking(
    game: Game, shares: Sequence[float] | Array, coalitions: Iterable[int] | None = None, tolerance: float = TOLERANCE
) -> tuple[Blocking, ...]:
    """Return the coalitions that do better by themselves, the largest gain first; empty if the shares are in the core.

    Args:
        coalitions: masks to compare; None: all. The grand coalition gains if the shares do not use up its value.
        tolerance: smallest gain that counts, as a share of the larger of abs(v(N)) and the largest abs(v(C)) compared.

    Raises:
        UserError: shares of another shape, an unknown mask, or too many players to value all coalitions.
    """
    amounts = _divided(game, shares)
    masks = list(range(len(game.table))) if coalitions is None else _legal(game, coalitions)
    values = _values(game, [game.everyone, *masks])
    least = tolerance * float(np.abs(values).max())
    gains = values[1:] - _rows(game, masks) @ amounts
    found = [Blocking(mask, float(gain)) for mask, gain in zip(masks, gains, strict=True) if gain > least]
    return tuple(sorted(found, key=lambda one: (-one.gain, one.coalition)))


@dataclass(frozen=True)
class _CoalitionPool:
    """Coalitions to compare, closed under complement, in a scaled game where each single player has 0 and the largest value is
    near 1. HiGHS has absolute tolerances. The least core and the nucleolus scale with the game (covariance)."""

    masks: list[int]
    rows: Array
    values: Array
    total: float
    alone: Array
    unit: float

    @classmethod
    def of(cls, game: Game, coalitions: Iterable[int]) -> _CoalitionPool:
        """Return the pool of some coalitions, their complements, the single players and their complements."""
        singles = [1 << i for i in range(len(game.players))]
        some = {*coalitions, *singles} - {0, game.everyone}
        masks = sorted(some | {game.everyone ^ mask for mask in some} - {0, game.everyone})
        alone = _values(game, singles)
        rows = _rows(game, masks)
        values = _values(game, masks) - rows @ alone
        total = float(_values(game, [game.everyone])[0] - alone.sum())
        unit = float(np.abs([total, *values]).max())
        if unit <= 1e-13 * float(np.abs(alone).sum()):  # the remainder of the sum is rounding: no coalition gains
            values, total, unit = np.zeros(len(masks)), 0.0, 1.0
        return cls(masks, rows, values / unit, total / unit, alone, unit)

    def allocation(self, scaled: Array) -> CoreAllocation:
        """Return the division in the unit of the game."""
        excess = self.values - self.rows @ scaled
        whole = len(self.masks) == (1 << len(self.alone)) - 2
        rational = bool((scaled >= -TOLERANCE).all())
        eps = float(excess.max()) * self.unit if len(excess) else 0.0
        return CoreAllocation(self.alone + scaled * self.unit, eps, len(self.masks), whole, rational)


def _highs(rows: Array, values: Array, fixed: Array, sums: Array, floor: float | None) -> tuple[Array, float, Array]:
    """Minimise eps for x >= floor, rows @ x + eps >= values and fixed @ x = sums. Return x, eps and duals of the inequalities.

    The rows are closed under complement, so eps has a bound. HiGHS takes all of them: with 0.03 s for 4,094 rows this measured
    faster than adding violated rows one by one.
    """
    players = rows.shape[1]
    for presolve in (True, False):
        answer = linprog(
            [*[0.0] * players, 1.0],
            A_ub=-np.column_stack([rows, np.ones(len(rows))]),
            b_ub=-values,
            A_eq=np.column_stack([fixed, np.zeros(len(fixed))]),
            b_eq=sums,
            bounds=[*[(floor, None)] * players, (None, None)],
            method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10, "presolve": presolve},
        )
        if answer.status == 0:
            return answer.x[:-1], float(answer.x[-1]), -answer.ineqlin.marginals
    raise RuntimeError(f"HiGHS found no least core: {answer.message}")


def _least(pool: _CoalitionPool) -> tuple[Array, float]:
    players = len(pool.alone)
    if players == 1:
        return np.array([pool.total]), 0.0
    x, eps, _ = _highs(pool.rows, pool.values, np.ones((1, players)), np.array([pool.total]), None)
    return x, eps


def _drawn(game: Game, how_many: int, random: np.random.Generator) -> set[int]:
    """Draw random coalitions: first the size, then the members, so that small and large ones occur."""
    players = len(game.players)
    drawn: set[int] = set()
    for _ in range(how_many // 2):
        members = random.permutation(players)[: random.integers(1, players)]
        mask = sum(1 << i for i in members.tolist())
        drawn |= {mask, game.everyone ^ mask}
    return drawn


def _searched(game: Game, most: int, seed: int) -> _CoalitionPool:
    """Search a pool of at most ``most`` coalitions: random, then neighbours of binding ones while one gains more.

    A neighbour has one player more or less. This is a local search for a violated constraint. It proves nothing about
    coalitions that it did not visit.
    """
    step = 2 * len(game.players)
    pool = _CoalitionPool.of(game, _drawn(game, most // 2, np.random.default_rng(seed)))
    gained = True
    while gained:
        gained = False
        x, eps = _least(pool)
        known = set(pool.masks)
        tightest = np.argsort(pool.rows @ x - pool.values, kind="stable")[:step].tolist()
        near = dict.fromkeys(pool.masks[i] ^ 1 << bit for i in tightest for bit in range(len(game.players)))
        untried = [mask for mask in near if mask not in known and 0 < mask < game.everyone][: (most - len(known)) // 2]
        tried: list[int] = []
        while untried and not gained:  # a few at a time, so that the budget is spent where there is a gain
            some, untried = untried[:step], untried[step:]
            tried += some
            gains = (_values(game, some) - _rows(game, some) @ (pool.alone + x * pool.unit)) / pool.unit
            gained = bool(gains.max() > eps + TOLERANCE)
        pool = _CoalitionPool.of(game, [*pool.masks, *tried])
    return pool


def _pool(game: Game, coalitions: Iterable[int] | None, most: int, seed: int) -> _CoalitionPool:
    if coalitions is not None:
        return _CoalitionPool.of(game, _legal(game, coalitions))
    if len(game.players) <= MOST_ENUMERATED:
        return _CoalitionPool.of(game, range(game.everyone + 1))
    least = 4 * len(game.players)
    return _searched(game, check_count(most, "coalitions", least), check_count(seed, "as the seed", least=0))


def least_core(game: Game, coalitions: Iterable[int] | None = None, most: int = MOST_VALUED, seed: int = 0) -> CoreAllocation:
    """Return the division that minimises the largest gain of any coalition by leaving (Maschler, Peleg, Shapley 1979).

    It minimises eps subject to x(C) >= v(C) - eps for every proper coalition, and x(N) = v(N). The core is empty exactly if eps
    > 0. The least core may hold many divisions: this is one corner of it. ``nucleolus`` is unique.

    Args:
        coalitions: masks to compare. Their complements and the single players are added. None: all up to ``MOST_ENUMERATED``
            players; beyond, random ones and the neighbours of the binding ones.
        most: coalitions valued by that search, at least 4 per player.
        seed: seed of the random ones.

    Raises:
        UserError: an unknown mask, a value that is not finite, or fewer than 4 coalitions per player.
    """
    pool = _pool(game, coalitions, most, seed)
    return pool.allocation(_least(pool)[0])


class _Span:
    """Coalitions whose share is settled, as a system of independent equations."""

    def __init__(self, players: int, total: float) -> None:
        self.rows, self.sums = np.ones((1, players)), np.array([total])
        self.basis = self.rows / np.sqrt(players)

    def outside(self, rows: Array) -> Bools:
        """Return which rows are linearly independent of the settled ones. The least distance of 12 players is above 1e-4."""
        rest = rows - rows @ self.basis.T @ self.basis
        rest -= rest @ self.basis.T @ self.basis  # once more, against rounding
        far: Bools = np.linalg.norm(rest, axis=1) > 1e-7
        return far

    def settle(self, row: Array, amount: float) -> None:
        rest = row - row @ self.basis.T @ self.basis
        rest -= rest @ self.basis.T @ self.basis
        self.basis = np.vstack([self.basis, rest / np.linalg.norm(rest)])
        self.rows, self.sums = np.vstack([self.rows, row]), np.append(self.sums, amount)


def nucleolus(game: Game, coalitions: Iterable[int] | None = None, most: int = MOST_VALUED, seed: int = 0) -> CoreAllocation:
    """Return the division that minimises the excesses, sorted from the largest down, in lexicographic order.

    It is unique, and it lies in the core if the core is not empty (Schmeidler 1969). Each level is one linear program
    (Maschler, Peleg, Shapley 1979). A coalition with a positive dual is tight in every optimum of its level, so its share is
    settled. A coalition that is a combination of settled ones is settled too. Each level raises the rank of the settled
    coalitions. So n - 1 levels suffice, and rank n leaves one division.

    No player gets less than alone. If v(N) is below the sum of the single values, no division achieves that: then this is the
    prenucleolus, and ``individually_rational`` is false.

    Args:
        coalitions, most, seed: as of ``least_core``. With a subset of the coalitions it is the nucleolus over those.

    Raises:
        UserError: as of ``least_core``.
    """
    pool = _pool(game, coalitions, most, seed)
    players = len(pool.alone)
    floor = 0.0 if pool.total >= 0 else None
    span = _Span(players, pool.total)
    left = np.arange(len(pool.masks))
    while len(span.rows) < players:
        left = left[span.outside(pool.rows[left])]
        _, eps, duals = _highs(pool.rows[left], pool.values[left], span.rows, span.sums, floor)
        for i in np.flatnonzero(duals > _STRICT):
            if span.outside(pool.rows[left[[i]]])[0]:
                span.settle(pool.rows[left[i]], pool.values[left[i]] - eps)
    return pool.allocation(np.linalg.solve(span.rows, span.sums))
