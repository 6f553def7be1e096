"""Whether sites stay together: who would leave, with whom, and what division would keep everyone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from paceline.array_types import Array
from paceline.market.federation.currency import priced
from paceline.market.game.core import Blocking, CoreAllocation, blocking, least_core
from paceline.market.game.game import MOST_ENUMERATED, Game
from paceline.market.game.stable_coalitions import StableCoalitions, merge_and_split

MOST_LEAVING = 5


@dataclass(frozen=True)
class StabilityVerdict:
    """Whether a federation holds.

    Attributes:
        leaving: groups that would do better by themselves under the division that was asked about, the largest gain first.
        how_many: of them. ``compared``: groups that were compared.
        least: the division that leaves the least to gain; ``least.eps`` at most 0: with it nobody leaves.
        coalitions: where sites end that merge and split by the Shapley value inside each group; None: too many sites.
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
        """Whether no group that was looked at would leave."""
        return not self.how_many

    @property
    def can_be_stable(self) -> bool:
        """Whether some division keeps every group that was looked at."""
        return self.least.eps <= 1e-9 * max(abs(self.game.value(self.game.everyone)), 1.0)

    def words(self, rule: str, currency: str) -> tuple[str, ...]:
        """The verdict for an owner who is no economist, a sentence each."""
        if not self.compared:
            return ("One site has nobody to share with.",)
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
    """Whether a division of what everyone saves holds.

    Args:
        coalitions: groups to compare. None: up to ``MOST_ENUMERATED`` sites all of them, else those that the search for the
            least core valued.
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


__all__ = ["StabilityVerdict", "judge"]
