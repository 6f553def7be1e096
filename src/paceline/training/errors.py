"""What a step of an attached model raises: types of their own, for ``except`` around ``backward()``. No torch is needed."""

from __future__ import annotations


class LostRank(RuntimeError):
    """A worker vanished while gradients were exchanged, or its link did."""


class ReplicasDiverged(RuntimeError):
    """The workers no longer hold the same weights."""
