"""A cooperative game: the saving of every group of sites by itself. A coalition is a set of sites, written as a bit mask."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, shorten, unknown

MOST_ENUMERATED = 12
"""Most sites whose coalitions are all valued: 12 sites have 4,096."""


@dataclass(frozen=True)
class Game:
    """A game whose players may share what they save in any way (transferable utility).

    Args:
        players: their names; player i is bit i of a coalition.
        worth: saving of a coalition over its members alone, by its mask. It is called once per coalition, and never for the
            empty one, which saves 0.

    Raises:
        UserError: no player, or two of one name.
    """

    players: tuple[str, ...]
    worth: Callable[[int], float]
    _known: dict[int, float] = field(default_factory=lambda: {0: 0.0}, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.players:
            raise UserError("a federation without sites", "give at least one")
        twice = next((name for name in self.players if self.players.count(name) > 1), "")
        if twice:
            raise UserError(f"two sites are named {shorten(twice, 40)!r}", "give each site a different name")

    def value(self, coalition: int) -> float:
        """Return the saving of a coalition."""
        if coalition not in self._known:
            self._known[coalition] = float(self.worth(coalition))
        return self._known[coalition]

    @property
    def valued(self) -> tuple[int, ...]:
        """Masks of the non-empty coalitions valued so far."""
        return tuple(sorted(mask for mask in self._known if mask))

    @property
    def everyone(self) -> int:
        """The grand coalition."""
        return (1 << len(self.players)) - 1

    def coalition(self, names: Iterable[str]) -> int:
        """Return the mask of some players. Raises UserError for an unknown name."""
        mask = 0
        for name in names:
            if name not in self.players:
                raise unknown("site", name, self.players)
            mask |= 1 << self.players.index(name)
        return mask

    def members(self, coalition: int) -> tuple[str, ...]:
        """Return the names of a coalition's players."""
        return tuple(name for i, name in enumerate(self.players) if coalition >> i & 1)

    @cached_property
    def table(self) -> Array:
        """The value of every coalition by its mask, shape (2^n,). Raises UserError beyond ``MOST_ENUMERATED`` players."""
        if len(self.players) > MOST_ENUMERATED:
            raise UserError(
                f"{len(self.players)} sites have {1 << len(self.players):,} coalitions",
                f"at most {MOST_ENUMERATED} sites are valued whole; sample them",
            )
        return np.array([self.value(mask) for mask in range(self.everyone + 1)])
