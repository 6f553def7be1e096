"""Errors of a step of an attached model, for ``except`` around ``backward()``. This module needs no torch."""

from __future__ import annotations


class LostRank(RuntimeError):
    """Error for a worker that vanished, or whose link failed, during an exchange of gradients."""


class ReplicasDiverged(RuntimeError):
    """Error for workers that no longer have equal weights."""
