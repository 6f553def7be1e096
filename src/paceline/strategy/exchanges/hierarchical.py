"""Hierarchical exchange: dense sums inside a node, encoded messages between nodes."""

from __future__ import annotations

from typing import final

from paceline.strategy.exchanges.exchange import Exchange
from paceline.strategy.exchanges.sharded import SHARDED, PushPull


@final
class Hierarchical(PushPull):
    """Hierarchical exchange of dense sums inside nodes and encoded messages between them. Ranks of a node add equal shares,
    padded with zeros; equal local ranks exchange them as ``sharded``.
    """

    __slots__ = ()
    name, position = "hierarchical", 5
    uses_nodes = reduces_to_owners = True
    most_workers = 1 << 14

    def carrier(self, coded: bool) -> Exchange:
        """Return ``sharded``, the exchange between nodes."""
        del coded
        return SHARDED


HIERARCHICAL = Hierarchical()
