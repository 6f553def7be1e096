"""The Shapley value: each player's mean marginal contribution over all orders of joining."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, check_count
from paceline.market.game.game import MOST_ENUMERATED, Game

PERMUTATIONS = 1000
"""Default number of sampled orders."""


@dataclass(frozen=True)
class ShapleyValue:
    """A division of the joint saving.

    Args:
        shares: shares of each player, shape (n,), in the unit of the game. They sum to v(N), up to the rounding of floats.
        standard_error: standard error of each share, shape (n,), from sampling alone. Zeros if the value is exact.
        sampled: orders were sampled.
        permutations: number of orders; 0 if the value is exact.
    """

    shares: Array
    standard_error: Array
    sampled: bool
    permutations: int


@lru_cache(maxsize=32)
def _weights(players: int) -> Array:
    """Return the probability that exactly a coalition (index: its mask) precedes a given player outside it, shape (2^n,)."""
    sizes = np.array([mask.bit_count() for mask in range(1 << players)])
    of_size = [1 / (players * comb(players - 1, size)) for size in range(players)] + [0.0]
    weights: Array = np.array(of_size)[sizes]
    return weights


def exact_shares(values: Array) -> Array:
    """Return the Shapley value of a table of 2^n values by the coalition's mask, shape (n,). Shapley 1953."""
    players = len(values).bit_length() - 1
    weights = _weights(players)
    shares = np.empty(players)
    for i in range(players):
        # Axis 1 says whether player i is in: both halves are views of the table.
        without, joined = np.moveaxis(values.reshape(-1, 2, 1 << i), 1, 0)
        shares[i] = float((weights.reshape(-1, 2, 1 << i)[:, 0] * (joined - without)).sum())
    return shares


def _check_finite(values: Array) -> None:
    if not np.isfinite(values).all():
        raise UserError("a coalition saves an unknown or endless amount", "give each coalition a finite value")


def exact(game: Game) -> ShapleyValue:
    """Compute the Shapley value from all 2^n coalitions.

    Raises:
        UserError: more than ``MOST_ENUMERATED`` players, or a value that is not finite.
    """
    _check_finite(game.table)
    return ShapleyValue(exact_shares(game.table), np.zeros(len(game.players)), False, 0)


def sample(game: Game, permutations: int = PERMUTATIONS, seed: int = 0) -> ShapleyValue:
    """Estimate the Shapley value from random orders, for any number of players.

    Each order is followed by its reverse (antithetic sampling): a player that came early comes late, and the errors of the two
    partly cancel. The standard error is of the means of these pairs. Only coalitions on the sampled orders are valued.

    Args:
        permutations: number of orders, reverses included, at least 4. An odd number is raised by one.
        seed: seed of the orders.

    Raises:
        UserError: fewer than 4 permutations, a bad seed, or a value that is not finite.
    """
    pairs = (check_count(permutations, "permutations", least=4) + 1) // 2
    random = np.random.default_rng(check_count(seed, "as the seed", least=0))
    gains = np.zeros((pairs, len(game.players)))
    for pair in gains:
        order = random.permutation(len(game.players)).tolist()
        for path in (order, order[::-1]):
            coalition, before = 0, 0.0
            for player in path:
                coalition |= 1 << player
                after = game.value(coalition)
                pair[player] += (after - before) / 2
                before = after
    _check_finite(gains)
    return ShapleyValue(gains.mean(axis=0), gains.std(axis=0, ddof=1) / np.sqrt(pairs), True, 2 * pairs)


def shapley(game: Game, permutations: int = PERMUTATIONS, seed: int = 0) -> ShapleyValue:
    """Return the Shapley value: exact up to ``MOST_ENUMERATED`` players, sampled beyond. Arguments as of ``sample``."""
    return exact(game) if len(game.players) <= MOST_ENUMERATED else sample(game, permutations, seed)
