"""Stability of a federation: groups that would leave, and the division that keeps everyone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.array_types import Array
from paceline.market.federation.site import priced
from paceline.market.game.core import Blocking, CoreAllocation, blocking, least_core
from paceline.market.game.game import MOST_ENUMERATED, Game
from paceline.market.game.stable_coalitions import StableCoalitions, merge_and_split

MOST_LEAVING = 5


@dataclass(frozen=True)
class StabilityVerdict:
    """Stability of a federation under a division.

    Attributes:
        leaving: groups that would do better by themselves under the division, the largest gain first.
        how_many: number of such groups. ``compared``: number of groups compared.
        least: the least core's division. With ``least.eps`` of at most 0 it keeps everyone.
        coalitions: the groups that form by merge and split under the Shapley value; None: too many sites.
    """

    game: Game
    shares: Array
    leaving: tuple[Blocking, ...]
    how_many: int
    compared: int
    least: CoreAllocation
    coalitions: StableCoalitions | None

    @property
    def stable(self) -> bool:
        """True if no compared group would leave."""
        return not self.how_many

    @property
    def can_be_stable(self) -> bool:
        """True if some division keeps every compared group."""
        return self.least.eps <= 1e-9 * max(abs(self.game.value(self.game.everyone)), 1.0)

    def words(self, rule: str, currency: str) -> tuple[str, ...]:
        """Return the verdict in plain sentences."""
        if not self.compared:
            return ("One site has no other site to share with.",)
        if self.stable:
            looked = f"none of the {self.compared:,} groups of sites {'' if self.least.whole else 'that were compared '}"
            first = f"Nobody gains by leaving: under {rule}, {looked}would do better by itself."
        else:
            worst = self.leaving[0]
            names = _listed(self.game.members(worst.coalition))
            groups = "one group of sites" if self.how_many == 1 else f"{self.how_many:,} groups of sites"
            most = "" if self.how_many == 1 else " most clearly"
            first = (
                f"Under {rule}, {groups} would do better by themselves: {names}{most}, with "
                f"{priced(worst.gain, currency)} more than here."
            )
        everyone, each = (
            ("everyone", "each group") if self.least.whole else ("all that were compared", "each group that was compared")
        )
        if self.can_be_stable:
            second = (
                f"A division exists that keeps {everyone}: least-core. With it {each} gets at least "
                f"{priced(max(-self.least.eps, 0.0), currency)} more than by itself."
            )
        else:
            second = (
                f"No division keeps everyone: some group always gains {priced(self.least.eps, currency)} or more by leaving."
            )
        sentences = [first, second]
        if self.coalitions is not None and len(self.coalitions.partition) > 1:
            groups = "; ".join(_listed(self.game.members(mask)) for mask in self.coalitions.partition)
            how = "stay" if self.coalitions.stable else "were when the search was cut off"
            sentences.append(
                f"Another question: sites that merge and split as they like, and divide by the Shapley value, {how} in these "
                f"groups: {groups}."
            )
        return tuple(sentences)


def judge(game: Game, shares: Array, coalitions: Collection[int] | None = None) -> StabilityVerdict:
    """Judge whether a division of the joint saving is stable.

    Args:
        coalitions: groups to compare. None: all up to ``MOST_ENUMERATED`` sites, else the ones that the search for the least
            core valued.
    """
    whole = coalitions is None and len(game.players) <= MOST_ENUMERATED
    least = least_core(game, coalitions)
    valued = game.valued if coalitions is None else coalitions
    groups = [mask for mask in (range(1, game.everyone) if whole else valued) if mask != game.everyone]
    found = blocking(game, shares, groups)
    stable = merge_and_split(game) if whole else None
    return StabilityVerdict(game, shares, found[:MOST_LEAVING], len(found), len(groups), least, stable)


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
