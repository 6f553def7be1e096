"""Levels of links that join devices, from the package to the pod, and the two kinds of links in an exchange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from paceline.errors import UserError
from paceline.hardware.device import Link
from paceline.hardware.placement import NodeSizes

LEVELS = ("package", "node", "rack", "pod", "site")
"""Names of levels, innermost first."""


@dataclass(frozen=True, slots=True)
class Level:
    """``size`` members of the next inner level (or devices) that ``link`` joins.

    The link's bandwidth is per member, in one direction.

    Attributes:
        name: one of ``LEVELS``.
        size: of the innermost level also one number for each member of the levels above, such as (1, 7): nodes that hold
            different numbers of devices.
        oversubscription: oversubscription of a level of switches: bandwidth of a member's own members together / bandwidth of
            the member, 2 for leaf switches with half as many links up as down. Ranks are numbered leaf by leaf.
    """

    name: str
    size: NodeSizes
    link: Link
    oversubscription: float = 1.0

    @property
    def most(self) -> int:
        """Number of members of the fullest group."""
        return self.size if isinstance(self.size, int) else max(self.size)


def tiers(levels: Sequence[Level]) -> tuple[Level, ...]:
    """Return the levels that matter to an exchange, at most two. If there are more, levels of size 1 are dropped, and
    neighbouring levels with the same link are merged.

    Raises:
        UserError: three kinds of links.
    """
    if len(levels) <= 2:
        return tuple(levels)
    node, *racks = levels
    if any(level.oversubscription > 1 for level in racks) and len({level.link for level in racks}) == 1:
        return node, replace(racks[0], size=prod(level.most for level in racks))  # a node of one device stays a node
    joined: list[Level] = []
    for level in levels:
        if level.size == 1:
            continue
        if joined and joined[-1].link == level.link and isinstance(joined[-1].size, int):
            joined[-1] = replace(joined[-1], size=joined[-1].size * level.most)
        else:
            joined.append(level)
    if len(joined) > 2:
        kinds = ", ".join(f"{tier.link.name} in the {tier.name}" for tier in joined)
        raise UserError(f"a cluster of {len(joined)} kinds of links ({kinds})", "two are predicted: join levels of one link")
    return tuple(joined) or tuple(levels[:1])


def leaves(levels: Sequence[Level]) -> tuple[int, float]:
    """Return the nodes of a leaf switch and its oversubscription; (0, 1.0) if no switch blocks.

    Three tiers of one network stay two kinds of links: a leaf only limits traffic that leaves it. So rings and trees that visit
        leaf after leaf have no loss if a leaf has at least as many nodes as its oversubscription.

    Raises:
        UserError: two levels of such switches, or one inside a node.
    """
    blocking = [number for number, level in enumerate(levels) if level.oversubscription > 1 and level.most > 1]
    if not blocking:
        return 0, 1.0
    if len(blocking) > 1:
        raise UserError("two levels of switches with oversubscription", "one is predicted: give the product to the lower")
    below, node = prod(level.most for level in levels[: blocking[0]]), tiers(levels)[0].most
    if not blocking[0] or below < node:
        raise UserError("oversubscription inside a node", "give it to the level that joins nodes or racks")
    return below // node, float(levels[blocking[0]].oversubscription)
