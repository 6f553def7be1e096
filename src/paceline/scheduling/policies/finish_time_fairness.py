"""Policy of finish-time fairness over time shares (Themis, NSDI 2020, for device types as in Gavel, OSDI 2020, section 4.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.share_programs import centred, highest_level
from paceline.scheduling.policies.solvers.time_shares import USUAL, RoundRules, ShareDemand, time_shared
from paceline.scheduling.state import Decision, State

CLOSE = 1e-3
"""Relative precision of the ratio at which the bisection ends."""


def finish_time_fairness(state: State, aware: bool = True, sharing: RoundRules = USUAL) -> Decision:
    """Minimize the largest ``rho = time in the shared cluster / time on an equal part of it``.

    Args:
        aware: use the speeds of device types; else every type counts as fast as the first.

    Raises:
        UserError: unknown remaining work of a job.
    """
    return time_shared(state, _aware if aware else _agnostic, sharing)


def _aware(demand: ShareDemand) -> tuple[Array, Any]:
    if not len(demand.rows):
        return demand.speed, {}
    alone = (demand.speed * _equal_part(demand)).sum(axis=1)
    past: dict[str, tuple[float, float, float]] = demand.past or {}
    names, left = demand.names, demand.left
    spent = np.zeros(len(left))
    for index, name in enumerate(names):
        if name in past:
            before_s, before, speed = past[name]
            spent[index] = before_s + (before - left[index]) / speed
    memory = {name: row for name, *row in zip(names, spent.tolist(), left.tolist(), alone.tolist(), strict=True)}
    return _least_rho(demand, left, spent + left / alone), memory


def _agnostic(demand: ShareDemand) -> tuple[Array, Any]:
    return _aware(demand.agnostic())


def _equal_part(demand: ShareDemand) -> Array:
    """Return the shares of a job that has an equal part of every type alone."""
    part = demand.state.capacity / len(demand.rows) / demand.devices[:, None]
    part = np.where(demand.speed > 0, part, 0.0)
    return np.asarray(part / np.maximum(part.sum(axis=1, keepdims=True), 1.0))


def _least_rho(demand: ShareDemand, left: Array, alone_s: Array) -> Array:
    """Return the shares of least ratio by bisection of linear programs: ``speed >= left / (rho * alone - age)`` is linear."""
    limits, speed, age = demand.limits, demand.speed, demand.age_s
    low = float(((age + left / speed.max(axis=1)) / alone_s).max())  # all devices of the best type, without a break
    high, rho = np.inf, low
    best = (0.0, np.zeros_like(speed), left)
    while high / low > 1 + CLOSE:
        least = left / np.maximum(rho * alone_s - age, 1e-9)
        level, corner = highest_level(limits, speed / np.maximum(least, 1e-30)[:, None])
        if level >= 1 - 1e-9:
            high, best = rho, (level, corner, least)
        else:
            low = rho
        if high <= low:
            break
        rho = low * min(2.0, max(1.0 / level, 1.0 + CLOSE)) if np.isinf(high) else (low * high) ** 0.5
    level, corner, least = best
    return centred(limits, corner, speed, least * min(level, 1.0))
