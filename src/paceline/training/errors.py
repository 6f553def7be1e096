"""Errors of a step of an attached model, for ``except`` around ``backward()``. This module needs no torch."""

from __future__ import annotations


class LostRank(RuntimeError):
    """A worker vanished while gradients were exchanged, or its link did."""


class ReplicasDiverged(RuntimeError):
    """The workers no longer hold the same weights."""
