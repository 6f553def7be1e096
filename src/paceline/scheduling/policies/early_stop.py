"""Early termination of jobs that no longer learn (Lin, Paolieri, Chou, Golubchik, MASCOTS 2018), before any other policy.

``State.curves`` brings what a job has reported, where more is better; a job is removed where its last reports add less than a
share of all that it learned. One that gets worse, or whose loss is no number any more, adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError, shorten
from paceline.scheduling.state import Decision, Policy, State

PATIENCE = 5
LEAST = 0.01
EXAMPLE = "write REPORTS or REPORTS:SHARE, such as 5 or 5:1%"


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """When a job learns no more.

    Attributes:
        patience: its last reports, such as epochs. ``least``: share of all that it had learned before that they must add.

    Raises:
        UserError: reports that are no whole number from 1 up, or a share that is not between 0 and 1.
    """

    patience: int = PATIENCE
    least: float = LEAST

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.least < 1:
            raise UserError(f"to stop after {self.patience} reports that add less than {self.least:g}", EXAMPLE)

    @classmethod
    def named(cls, text: str) -> EarlyStop:
        """``5`` or ``5:1%``. Raises UserError."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise UserError(f"to stop early at {shorten(text, 40)!r}", EXAMPLE)
        share = float(match[2]) / (100 if match[3] else 1) if match[2] else LEAST
        return cls(int(match[1]), share)

    def __str__(self) -> str:
        reports = "report" if self.patience == 1 else f"{self.patience} reports"
        return f"its last {reports} added less than {self.least * 100:.3g} % of what it had learned before"


def stopping_early(policy: Policy, rule: EarlyStop = EarlyStop()) -> Policy:
    """The policy, but jobs that no longer learn are removed and their devices left free until the next decision."""

    def decide(state: State) -> Decision:
        gone = {
            index: f"it no longer learned: {rule}"
            for index, curve in enumerate(state.curves)
            if learned_enough(curve, rule.patience, rule.least)
        }
        decision = policy(state)
        if not gone:
            return decision
        stay = ~np.isin(np.arange(len(state.jobs)), list(gone))
        removed: Mapping[int, str] = {**decision.removed, **gone}
        return replace(decision, devices=decision.devices * stay, removed=removed, wake_s=state.time_s)

    return decide


def learned_enough(curve: Array, patience: int = PATIENCE, least: float = LEAST) -> bool:
    """Whether the last ``patience`` values add less than ``least`` of the way from the first to the best before them.

    Args:
        curve: as one of ``State.curves``; what is no number counts as worst.
    """
    known = np.isfinite(curve)
    if len(curve) < 2 * patience or not known.any():
        return False
    reached = np.where(known, curve, -np.inf)
    before, late = float(reached[:-patience].max()), float(reached[-patience:].max())
    if before == -np.inf:
        return False
    return late - before <= least * (before - float(curve[known][0]))


_RULE = re.compile(r"\s*(\d{1,6})\s*(?::\s*(\d+(?:\.\d+)?|\.\d+)\s*(%)?\s*)?")

__all__ = ["EarlyStop", "learned_enough", "stopping_early"]
