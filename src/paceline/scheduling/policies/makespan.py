"""The shortest makespan over time shares (Gavel, OSDI 2020, section 4.2: minimum total duration)."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.share_lp import centred, highest_level
from paceline.scheduling.policies.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

TOLERANCE = 0.025
"""Part by which a job may end after the optimum: the mean of Gavel's bisection, which ends within 5 %."""


def makespan(state: State, sharing: RoundRules = USUAL, tolerance: float = TOLERANCE) -> Decision:
    """The last job ends as early as can be: ``max over jobs of left / speed`` is least.

    Args:
        tolerance: the shares lie in the middle of all that end within this part of the optimum.

    Raises:
        UserError: nobody knows the work left of some job.
    """

    def shares(demand: ShareDemand) -> tuple[Array, Any]:
        if not len(demand.rows):
            return demand.speed, None
        rates = demand.speed / np.maximum(demand.left, 1e-9)[:, None]
        level, corner = highest_level(demand.limits, rates)
        return centred(demand.limits, corner, rates, np.full(len(rates), level), slack=tolerance), None

    return time_shared(state, shares, sharing)


__all__ = ["TOLERANCE", "makespan"]
