"""Early termination of jobs that no longer learn (Lin, Paolieri, Chou, Golubchik, MASCOTS 2018), before any other policy.

``State.curves`` brings the loss or metric that a job has reported; a job is removed where its last reports add less than a
share of all that it learned. Which way is better shows in the curve: a loss falls, an accuracy rises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.state import Decision, Policy, State

PATIENCE = 5
"""Reports, such as epochs."""
LEAST = 0.01
"""Of what a job has learned since its first report."""


def stopping_early(policy: Policy, patience: int = PATIENCE, least: float = LEAST) -> Policy:
    """The policy, but jobs that no longer learn are removed and their devices left free until the next decision.

    Args:
        patience: the last reports. ``least``: share of all that a job has learned that they must add.
    """

    def decide(state: State) -> Decision:
        gone = {
            index: f"its last {patience} reports added less than {least:.0%} of what it learned"
            for index, curve in enumerate(state.curves)
            if learned_enough(curve, patience, least)
        }
        decision = policy(state)
        if not gone:
            return decision
        stay = ~np.isin(np.arange(len(state.jobs)), list(gone))
        removed: Mapping[int, str] = {**decision.removed, **gone}
        return replace(decision, devices=decision.devices * stay, removed=removed, wake_s=state.time_s)

    return decide


def learned_enough(curve: Array, patience: int = PATIENCE, least: float = LEAST) -> bool:
    """Whether the last ``patience`` values add less than ``least`` of the way from the first to the best before them."""
    if len(curve) < 2 * patience or not np.isfinite(curve).all():
        return False
    half = len(curve) // 2
    rising = curve if curve[half:].mean() >= curve[:half].mean() else -curve
    before, late = float(rising[:-patience].max()), float(rising[-patience:].max())
    return late - before <= least * (before - float(rising[0]))


__all__ = ["learned_enough", "stopping_early"]
