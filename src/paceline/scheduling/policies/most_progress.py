"""Policies of the most progress over time shares (Gavel, OSDI 2020, section 4.2): per second, and per dollar with deadlines.

``max_throughput`` is the Gavel of Sia's authors. ``cost`` has the deadlines of Gavel's SLO rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.policies.solvers.share_programs import centred, most_value
from paceline.scheduling.policies.solvers.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

CLAIMED = replace(USUAL, fills=False)
"""Rules that leave unclaimed devices free, as they then cost nothing."""
_KEEP = 0.05
"""Reserve in the time to a deadline, because rounds follow shares only approximately."""


def max_throughput(state: State, sharing: RoundRules = USUAL) -> Decision:
    """Maximize the total progress a second.

    As published, units of progress are not normalized: jobs of small steps count more.
    """
    return time_shared(state, _fastest, sharing)


def _fastest(demand: ShareDemand) -> tuple[Array, Any]:
    if not len(demand.rows):
        return demand.speed, None
    corner = most_value(demand.limits, demand.speed)
    if corner is None:
        raise RuntimeError("shares of 0 are legal, but none were found")
    return centred(demand.limits, corner, demand.speed, np.zeros(len(corner)), demand.speed), None


def cost(state: State, sharing: RoundRules = CLAIMED) -> Decision:
    """Maximize the sum of throughput over price. Throughput is relative to the job's fastest type.

    All deadlines that can be met are met. If some cannot, the tightest are given up first.

    Raises:
        UserError: a type without a price, or unknown remaining work of a job with a deadline.
    """
    for group in state.fleet.groups:
        if not group.price > 0:
            raise UserError(f"the price of {group.device} is unknown", "give each type a price in dollars a device and hour")
    return time_shared(state, _cheapest, sharing)


def _cheapest(demand: ShareDemand) -> tuple[Array, Any]:
    if not len(demand.rows):
        return demand.speed, None
    price = np.array([group.price for group in demand.state.fleet.groups])
    relative = demand.speed / demand.speed.max(axis=1, keepdims=True)
    values = relative / price
    least = _needed(demand, relative)
    corner = most_value(demand.limits, values, np.column_stack([relative, least]))
    while corner is None:
        least[least.argmax()] = 0.0
        corner = most_value(demand.limits, values, np.column_stack([relative, least]))
    return centred(demand.limits, corner, relative, least, values), None


def _needed(demand: ShareDemand, relative: Array) -> Array:
    """Return the relative speed that each job needs to meet its deadline; 0 without a deadline, or if it cannot be met."""
    deadline_s = np.array([demand.state.jobs[row].deadline_s for row in demand.rows])
    least = np.zeros(len(relative))
    if np.isfinite(deadline_s).any():
        time_s = np.maximum((1 - _KEEP) * (deadline_s - demand.state.time_s), 1e-9)
        least = np.where(np.isfinite(deadline_s), demand.left / demand.speed.max(axis=1) / time_s, 0.0)
    return np.where(least > 1, 0.0, least)
