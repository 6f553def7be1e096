"""Dense sums inside a node, encoded messages between nodes."""

from __future__ import annotations

from typing import final

from paceline.strategy.exchanges.exchange import Exchange
from paceline.strategy.exchanges.sharded import SHARDED, PushPull


@final
class Hierarchical(PushPull):
    """Ranks of a node add up equal shares, padded with zeros. Ranks of equal local number exchange them as ``sharded``."""

    __slots__ = ()
    name, position = "hierarchical", 5
    uses_nodes = reduces_to_owners = True
    most_workers = 1 << 14

    def carrier(self, coded: bool) -> Exchange:
        """Return ``sharded``: that is how nodes exchange."""
        del coded
        return SHARDED


HIERARCHICAL = Hierarchical()
