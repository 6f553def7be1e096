"""Policy of the shortest makespan over time shares (Gavel, OSDI 2020, section 4.2: minimum total duration)."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.share_programs import centred, highest_level
from paceline.scheduling.policies.solvers.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

TOLERANCE = 0.025
"""Relative delay allowed after the optimum: the mean of Gavel's bisection, which ends within 5 %."""


def makespan(state: State, sharing: RoundRules = USUAL, tolerance: float = TOLERANCE) -> Decision:
    """Minimize the end of the last job: ``max over jobs of left / speed``.

    Args:
        tolerance: relative delay after the optimum within which the central shares are chosen.

    Raises:
        UserError: unknown remaining work of a job.
    """

    def shares(demand: ShareDemand) -> tuple[Array, Any]:
        if not len(demand.rows):
            return demand.speed, None
        rates = demand.speed / np.maximum(demand.left, 1e-9)[:, None]
        level, corner = highest_level(demand.limits, rates)
        return centred(demand.limits, corner, rates, np.full(len(rates), level), slack=tolerance), None

    return time_shared(state, shares, sharing)
