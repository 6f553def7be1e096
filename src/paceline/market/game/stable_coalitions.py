"""Coalitions formed by merge and split: each change helps some member and hurts none.

The rules are of Apt and Witzel, A generic approach to coalition formation (arXiv 0709.0435), with the Pareto order of payoffs.
Mashayekhy, Nejad and Grosu (Cloud Federations in the Sky, TCC 2015) form cloud federations in this way. Only the abstract of
their paper was at hand. Assumption: a split, like a merge, must hurt no member of the coalition that splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, check_count, shown
from paceline.market.game.game import MOST_ENUMERATED, Game
from paceline.market.game.shapley import exact_shares, sample

Division = Callable[[Game, int], Array]
"""Shares of a coalition's value, in the order of its members. A single player gets its own value."""

MOST_DIVIDED = 10_000
"""Default cap on coalitions whose value is divided. 12 players have 4,095 coalitions."""


def subgame(game: Game, coalition: int) -> Game:
    """Return the game of a coalition's members. Its values come from ``game``, which caches them."""
    bits = [1 << i for i in range(len(game.players)) if coalition >> i & 1]
    return Game(game.members(coalition), lambda mask: game.value(sum(bit for i, bit in enumerate(bits) if mask >> i & 1)))


def by_shapley(game: Game, coalition: int) -> Array:
    """Divide by the Shapley value of the members' game.

    Beyond ``MOST_ENUMERATED`` members it is sampled, with the same seed each time. The sampling error may decide a merge.
    """
    bits = [1 << i for i in range(len(game.players)) if coalition >> i & 1]
    if len(bits) > MOST_ENUMERATED:
        return sample(subgame(game, coalition)).shares
    masks = [0]
    for bit in bits:
        masks += [mask | bit for mask in masks]
    return exact_shares(np.array([game.value(mask) for mask in masks]))


@dataclass(frozen=True)
class CoalitionChange:
    """A merge or a split: the masks of the coalitions before and after it."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class StableCoalitions:
    """The coalitions that form.

    Args:
        partition: their masks, in order.
        payoffs: payoffs of each player, shape (n,), in the unit of the game. No player gets less than alone.
        changes: every merge and split, from single players to the partition.
        stable: no merge and no split applies (D_hp-stable). False: the search reached its cap.
        note: description of cases that were not tried at the cap, or empty.
    """

    partition: tuple[int, ...]
    payoffs: Array
    changes: tuple[CoalitionChange, ...]
    stable: bool
    note: str

    @property
    def rounds(self) -> int:
        """Number of merges and splits."""
        return len(self.changes)


class CapReached(Exception):
    """The cap on divided coalitions is reached."""


class MergeSplitSearch:
    """Merges and splits of a game under a division. Each coalition is divided once."""

    def __init__(self, game: Game, division: Division, most: int) -> None:
        self.game, self.division = game, division
        self.most = check_count(most, "coalitions to divide", least=len(game.players))
        self.known: dict[int, dict[int, float]] = {}

    def payoffs(self, coalition: int) -> dict[int, float]:
        """Return the payoff of each member, by its bit. Raises CapReached."""
        if coalition not in self.known:
            if len(self.known) >= self.most:
                raise CapReached
            bits = [1 << i for i in range(len(self.game.players)) if coalition >> i & 1]
            amounts = self.division(self.game, coalition)
            if len(amounts) != len(bits) or not np.isfinite(amounts).all():
                raise UserError(f"a division gave {shown(amounts)} to {len(bits)} sites", "let it give each a finite amount")
            self.known[coalition] = dict(zip(bits, map(float, amounts), strict=True))
        return self.known[coalition]

    def gain(self, old: dict[int, float], new: dict[int, float]) -> float:
        """Return the joint gain of the members of ``new``: -inf if one of them loses, 0 if none gains.

        A loss within rounding counts as 0. It is far below the smallest gain, so every change raises the sum of payoffs and
        the search ends.
        """
        size = max(abs(amount) for payoffs in (old, new) for amount in payoffs.values())
        gains = [new[bit] - old[bit] for bit in new]
        if min(gains) < -1e-12 * size:
            return -np.inf
        return sum(gains) if max(gains) > 1e-9 * size else 0.0

    def merge(self, partition: tuple[int, ...]) -> CoalitionChange | None:
        """Return the applicable merge of the fewest coalitions; among those, the one with the largest gain."""
        for many in range(2, len(partition) + 1):
            best, chosen = 0.0, None
            for blocks in combinations(partition, many):
                before = {bit: amount for block in blocks for bit, amount in self.payoffs(block).items()}
                gain = self.gain(before, self.payoffs(sum(blocks)))
                if gain > best:
                    best, chosen = gain, CoalitionChange(blocks, (sum(blocks),))
            if chosen:
                return chosen
        return None

    def split(self, coalition: int) -> CoalitionChange | None:
        """Return the applicable split of a coalition, into any number of parts, with the largest gain.

        A part is allowed if none of its members loses. A split applies exactly if allowed parts cover the coalition and some
        member gains. The recursion covers the remaining players from the first one on: at most 3^n steps, not all partitions.
        """
        old = self.payoffs(coalition)
        gains: dict[int, float] = {}

        @cache
        def cover(remaining: int) -> tuple[float, tuple[int, ...]]:
            """Return the largest gain of allowed parts that cover ``remaining``, and the parts; -inf if no parts do."""
            best: tuple[float, tuple[int, ...]] = (-np.inf, ())
            for part in _parts(remaining):
                if part not in gains:
                    gains[part] = self.gain(old, self.payoffs(part))
                if gains[part] >= 0:
                    gain, rest = cover(remaining ^ part) if remaining ^ part else (0.0, ())
                    if gains[part] + gain > best[0]:
                        best = gains[part] + gain, (part, *rest)
            return best

        gain, parts = cover(coalition)
        return CoalitionChange((coalition,), parts) if gain > 0 else None

    def change(self, partition: tuple[int, ...]) -> CoalitionChange | None:
        """Return an applicable merge, else an applicable split, else None."""
        return self.merge(partition) or next((change for block in partition if (change := self.split(block))), None)


def _parts(coalition: int) -> Iterator[int]:
    """Yield the subsets of a coalition that hold its first player, the largest first."""
    first = coalition & -coalition
    others = rest = coalition ^ first
    while True:
        yield first | rest
        if not rest:
            return
        rest = rest - 1 & others


def merge_and_split(game: Game, division: Division = by_shapley, most: int = MOST_DIVIDED) -> StableCoalitions:
    """Form coalitions from single players, by merges and splits until none applies.

    Coalitions merge if every member gets at least as much as before and one gets more; a coalition splits by the same rule.
    Pairs merge before larger groups, and the largest gain goes first. Another order may end in another partition. Each change
    is a Pareto improvement, so the search ends, and no player gets less than alone. The result is D_hp-stable (Apt and Witzel).

    Args:
        division: division of a coalition's value among its members. It depends on nothing else.
        most: cap on divided coalitions, at least one per player.

    Raises:
        UserError: a cap below the number of players, or a division that returns a wrong number of amounts.
    """
    search = MergeSplitSearch(game, division, most)
    partition = tuple(1 << i for i in range(len(game.players)))
    for single in partition:
        search.payoffs(single)
    changes: list[CoalitionChange] = []
    note = ""
    try:
        while change := search.change(partition):
            changes.append(change)
            partition = tuple(sorted({*partition} - {*change.before} | {*change.after}))
    except CapReached:
        note = f"stopped after {search.most:,} divided coalitions: other merges and splits were not tried"
    payoffs = {bit: amount for block in partition for bit, amount in search.payoffs(block).items()}
    return StableCoalitions(partition, np.array([payoffs[bit] for bit in sorted(payoffs)]), tuple(changes), not note, note)
