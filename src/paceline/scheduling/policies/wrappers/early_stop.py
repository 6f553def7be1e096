"""Early termination of jobs that no longer learn (Lin, Paolieri, Chou, Golubchik, MASCOTS 2018), combined with any policy.

``State.curves`` has the reports of each job, where higher is better. A job is removed if its last reports add less than a share
of its total progress. Reports that are worse, or not a number, add nothing.
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
    """Rule for a job that no longer learns.

    Attributes:
        patience: number of last reports, such as epochs.
        least: share of all earlier progress that they must add.

    Raises:
        UserError: ``patience`` below 1, or ``least`` outside 0 to 1.
    """

    patience: int = PATIENCE
    least: float = LEAST

    def __post_init__(self) -> None:
        if self.patience < 1 or not 0 <= self.least < 1:
            raise UserError(f"to stop after {self.patience} reports that add less than {self.least:g}", EXAMPLE)

    @classmethod
    def named(cls, text: str) -> EarlyStop:
        """Parse ``5`` or ``5:1%``. Raises UserError."""
        match = _RULE.fullmatch(text)
        if match is None:
            raise UserError(f"to stop early at {shorten(text, 40)!r}", EXAMPLE)
        share = float(match[2]) / (100 if match[3] else 1) if match[2] else LEAST
        return cls(int(match[1]), share)

    def __str__(self) -> str:
        reports = "report" if self.patience == 1 else f"{self.patience} reports"
        return f"its last {reports} added less than {self.least * 100:.3g} % of its earlier progress"


def stopping_early(policy: Policy, rule: EarlyStop = EarlyStop()) -> Policy:
    """Wrap a policy so that jobs that no longer learn are removed. Their devices stay free until the next decision."""

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
    """Return whether the last ``patience`` values add less than ``least`` of the progress before them.

    Args:
        curve: one of ``State.curves``. Values that are not numbers count as worst.
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
