"""Which groups of sites form and last: coalitions merge and split while that helps some member and hurts none.

The rules are of Apt and Witzel, A generic approach to coalition formation (arXiv 0709.0435), with the Pareto order of payoffs.
Mashayekhy, Nejad and Grosu (Cloud Federations in the Sky, TCC 2015) form cloud federations so. Of their paper the abstract was
at hand. Assumed here: a split, like a merge, must hurt no member of the coalition that splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, check_count, shown
from paceline.market.game.game import MOST_ENUMERATED, Game
from paceline.market.game.shapley import exact_shares, sample

Division = Callable[[Game, int], Array]
"""What each member of a coalition gets of its value, in the order of the players. A player alone gets its own value."""

MOST_DIVIDED = 10_000
"""Coalitions whose value is divided unless told: all of 12 players are 4,095."""


def subgame(game: Game, coalition: int) -> Game:
    """The game of the members of a coalition alone. Its values are of ``game``, which keeps them."""
    bits = [1 << i for i in range(len(game.players)) if coalition >> i & 1]
    return Game(game.members(coalition), lambda mask: game.value(sum(bit for i, bit in enumerate(bits) if mask >> i & 1)))


def by_shapley(game: Game, coalition: int) -> Array:
    """A division: the Shapley value of the members' own game.

    Beyond ``MOST_ENUMERATED`` members it is sampled, with the same seed each time. That values thousands of coalitions. An
    error of the sample may decide a merge. Another division is quicker there.
    """
    bits = [1 << i for i in range(len(game.players)) if coalition >> i & 1]
    if len(bits) > MOST_ENUMERATED:
        return sample(subgame(game, coalition)).shares
    masks = [0]
    for bit in bits:
        masks += [mask | bit for mask in masks]
    return exact_shares(np.array([game.value(mask) for mask in masks]))


def equally(game: Game, coalition: int) -> Array:
    """A division: the same for each member."""
    members = coalition.bit_count()
    return np.full(members, game.value(coalition) / members)


def in_proportion(weights: Sequence[float] | Array) -> Division:
    """A division in proportion to a weight of each player, such as its GPUs. Equal where the members' weights are all 0.

    Args:
        weights: shape (n,), not negative.

    Raises:
        UserError: a negative or unknown weight; another number of weights than players, once it divides.
    """
    given = np.asarray(weights, dtype=float)
    if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any():
        raise UserError(f"the weights {shown(weights)}", "give each site a finite weight from 0 up")

    def divide(game: Game, coalition: int) -> Array:
        if len(given) != len(game.players):
            raise UserError(f"{len(given)} weights for {len(game.players)} sites", "give one a site")
        own = given[[bool(coalition >> i & 1) for i in range(len(given))]]
        return game.value(coalition) * own / own.sum() if own.sum() else equally(game, coalition)

    return divide


@dataclass(frozen=True)
class Change:
    """A merge or a split: the coalitions before and after it, by their masks."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class StableCoalitions:
    """The coalitions that form.

    Args:
        partition: their masks, in order.
        payoffs: of each player, shape (n,), in the unit of the game. Nobody gets less than alone.
        changes: every merge and split, from the players alone to the partition.
        stable: no merge and no split applies (D_hp-stable). False: the work reached its cap first.
        note: what was left untried at the cap; else empty.
    """

    partition: tuple[int, ...]
    payoffs: Array
    changes: tuple[Change, ...]
    stable: bool
    note: str

    @property
    def rounds(self) -> int:
        """Merges and splits made."""
        return len(self.changes)


@dataclass(frozen=True)
class Stability:
    """Whether a partition lasts.

    Args:
        stable: no merge and no split applies. False with no ``change``: the work reached its cap before one was found.
        change: one that applies, if any was found.
        note: what was left untried at the cap; else empty.
    """

    stable: bool
    change: Change | None
    note: str


class _CapReached(Exception):
    """No further coalition may be divided."""


class _Search:
    """Merges and splits of a game under a division. Each coalition is divided once."""

    def __init__(self, game: Game, division: Division, most: int) -> None:
        self.game, self.division = game, division
        self.most = check_count(most, "coalitions to divide", least=len(game.players))
        self.known: dict[int, dict[int, float]] = {}

    def payoffs(self, coalition: int) -> dict[int, float]:
        """What each member (bit) gets."""
        if coalition not in self.known:
            if len(self.known) >= self.most:
                raise _CapReached
            bits = [1 << i for i in range(len(self.game.players)) if coalition >> i & 1]
            amounts = self.division(self.game, coalition)
            if len(amounts) != len(bits) or not np.isfinite(amounts).all():
                raise UserError(f"a division gave {shown(amounts)} to {len(bits)} sites", "let it give each a finite amount")
            self.known[coalition] = dict(zip(bits, map(float, amounts), strict=True))
        return self.known[coalition]

    def gain(self, old: dict[int, float], new: dict[int, float]) -> float:
        """What the members of ``new`` gain together; -inf where one of them loses, 0 where none gains.

        A loss within rounding is none. It is far below the least gain, so that every change raises the sum of payoffs, and the
        search ends.
        """
        size = max(abs(amount) for payoffs in (old, new) for amount in payoffs.values())
        gains = [new[bit] - old[bit] for bit in new]
        if min(gains) < -1e-12 * size:
            return -np.inf
        return sum(gains) if max(gains) > 1e-9 * size else 0.0

    def merge(self, partition: tuple[int, ...]) -> Change | None:
        """The merge of fewest coalitions that applies; of these the one that gains most."""
        for many in range(2, len(partition) + 1):
            best, chosen = 0.0, None
            for blocks in combinations(partition, many):
                before = {bit: amount for block in blocks for bit, amount in self.payoffs(block).items()}
                gain = self.gain(before, self.payoffs(sum(blocks)))
                if gain > best:
                    best, chosen = gain, Change(blocks, (sum(blocks),))
            if chosen:
                return chosen
        return None

    def split(self, coalition: int) -> Change | None:
        """The split of a coalition, into any number of parts, that applies and gains most.

        A part may stand in a split where none of its members loses. So a split applies exactly where such parts cover the
        coalition and a member of one of them gains. Recursion covers what is left, from its first player on: at most 3^n steps
        instead of all partitions.
        """
        old = self.payoffs(coalition)
        gains: dict[int, float] = {}

        @cache
        def cover(left: int) -> tuple[float, tuple[int, ...]]:
            """The most that parts which cover ``left`` gain, and the parts; -inf where none cover it."""
            best: tuple[float, tuple[int, ...]] = (-np.inf, ())
            for part in _parts(left):
                if part not in gains:
                    gains[part] = self.gain(old, self.payoffs(part))
                if gains[part] >= 0:
                    gain, rest = cover(left ^ part) if left ^ part else (0.0, ())
                    if gains[part] + gain > best[0]:
                        best = gains[part] + gain, (part, *rest)
            return best

        gain, parts = cover(coalition)
        return Change((coalition,), parts) if gain > 0 else None

    def change(self, partition: tuple[int, ...]) -> Change | None:
        """A merge that applies, else a split."""
        return self.merge(partition) or next((change for block in partition if (change := self.split(block))), None)

    def note(self) -> str:
        """What the cap means for the answer."""
        return f"stopped after {self.most:,} divided coalitions: other merges and splits were not tried"


def _parts(left: int) -> Iterator[int]:
    """Subsets of a coalition that hold its first player, the largest first."""
    first = left & -left
    others = rest = left ^ first
    while True:
        yield first | rest
        if not rest:
            return
        rest = rest - 1 & others


def merge_and_split(game: Game, division: Division = by_shapley, most: int = MOST_DIVIDED) -> StableCoalitions:
    """Coalitions that form from the players alone, by merges and splits until none applies.

    Coalitions merge where every member gets at least as much as before and one gets more. A coalition splits likewise. Pairs
    merge before larger groups, and what gains most goes first: another order may end in another partition. Each change is a
    Pareto improvement from the players alone, so it ends, and nobody gets less than alone. What it ends in is D_hp-stable (Apt
    and Witzel).

    Args:
        division: of a coalition's value among its members. It depends on nothing else.
        most: coalitions to divide, at least one a player. A coalition of more than ``MOST_ENUMERATED`` may need them all.

    Raises:
        UserError: a cap below the number of players, or a division that gives another number of amounts than members.
    """
    search = _Search(game, division, most)
    partition = tuple(1 << i for i in range(len(game.players)))
    for single in partition:
        search.payoffs(single)
    changes: list[Change] = []
    note = ""
    try:
        while change := search.change(partition):
            changes.append(change)
            partition = tuple(sorted({*partition} - {*change.before} | {*change.after}))
    except _CapReached:
        note = search.note()
    payoffs = {bit: amount for block in partition for bit, amount in search.payoffs(block).items()}
    return StableCoalitions(partition, np.array([payoffs[bit] for bit in sorted(payoffs)]), tuple(changes), not note, note)


def stability(game: Game, partition: Sequence[int], division: Division = by_shapley, most: int = MOST_DIVIDED) -> Stability:
    """Whether no merge and no split applies to a partition. Arguments as of ``merge_and_split``.

    Raises:
        UserError: the coalitions do not hold every player exactly once; else as of ``merge_and_split``.
    """
    blocks = tuple(partition)
    if (
        any(block < 1 for block in blocks)
        or sum(blocks) != game.everyone
        or sum(map(int.bit_count, blocks)) != len(game.players)
    ):
        raise UserError(f"the coalitions {shown(partition)}", "give masks that hold each site exactly once")
    search = _Search(game, division, most)
    try:
        change = search.change(blocks)
    except _CapReached:
        return Stability(False, None, search.note())
    return Stability(change is None, change, "")


__all__ = [
    "MOST_DIVIDED",
    "Change",
    "Division",
    "Stability",
    "StableCoalitions",
    "by_shapley",
    "equally",
    "in_proportion",
    "merge_and_split",
    "stability",
    "subgame",
]
