"""Policy of max-min fairness over time shares (Gavel, OSDI 2020, section 4.1, heterogeneity-aware least attained service)."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.share_programs import centred, highest_level
from paceline.scheduling.policies.solvers.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State


def max_min(state: State, aware: bool = True, sharing: RoundRules = USUAL) -> Decision:
    """Maximize the least ``devices * speed / (weight * speed on an equal share of the cluster)`` of all jobs.

    Args:
        aware: use the speeds of device types; else all types count as equally fast.
    """
    return time_shared(state, _aware if aware else _agnostic, sharing)


def _aware(demand: ShareDemand) -> tuple[Array, Any]:
    if not len(demand.rows):
        return demand.speed, None
    rates = demand.speed * (demand.devices / (demand.weight * demand.mean_speed))[:, None]
    level, corner = highest_level(demand.limits, rates)
    return centred(demand.limits, corner, rates, np.full(len(rates), level)), None


def _agnostic(demand: ShareDemand) -> tuple[Array, Any]:
    return _aware(demand.agnostic())
