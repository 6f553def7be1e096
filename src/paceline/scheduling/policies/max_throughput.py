"""Policy of the largest total throughput over time shares (Gavel, OSDI 2020, section 4.2), the Gavel of Sia's authors."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.share_programs import centred, most_value
from paceline.scheduling.policies.solvers.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State


def max_throughput(state: State, sharing: RoundRules = USUAL) -> Decision:
    """Maximize the total progress a second.

    As published, units of progress are not normalized: jobs of small steps count more.
    """
    return time_shared(state, _shares, sharing)


def _shares(demand: ShareDemand) -> tuple[Array, Any]:
    if not len(demand.rows):
        return demand.speed, None
    corner = most_value(demand.limits, demand.speed)
    if corner is None:
        raise RuntimeError("shares of 0 are legal, but none were found")
    return centred(demand.limits, corner, demand.speed, np.zeros(len(corner)), demand.speed), None
