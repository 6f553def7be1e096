"""Least attained service in two queues, first in first out inside each (Tiresias, NSDI 2019, section 4: discretised 2D-LAS).

A job whose devices times seconds reach the threshold moves to the second queue and stays there. Jobs are rigid. One that does
not fit is passed over.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.scheduling.policies.rigid import filled
from paceline.scheduling.state import Decision, State

THRESHOLD_S = 16 * 3600.0
"""Device-seconds of the first queue (Tiresias in Pollux's simulator)."""

ROUNDING_S = 1e-3
"""A job so close to the threshold has reached it: the moment at which it was to be is rounded."""


def las(state: State, threshold_s: float = THRESHOLD_S) -> Decision:
    """Fill the cluster from the first queue, then from the second.

    Args:
        threshold_s: device-seconds.
    """
    demoted: dict[str, int] = dict(state.memory or {})
    over: list[int] = np.flatnonzero(state.ran_s * state.requested >= threshold_s - ROUNDING_S).tolist()
    for index in over:
        demoted.setdefault(state.jobs[index].name, len(demoted))
    rank = np.full(len(state.jobs), -1)
    for index in over:
        rank[index] = demoted[state.jobs[index].name]
    order = np.argsort(rank, kind="stable")
    decision = filled(state, order)
    running = (decision.devices > 0) & (rank < 0)
    left = np.where(running, (threshold_s - state.ran_s * state.requested) / np.maximum(state.requested, 1), math.inf)
    kept = {state.jobs[index].name: demoted[state.jobs[index].name] for index in over}
    wake_s = state.time_s + float(left.min(initial=math.inf))
    return Decision(devices=decision.devices, type_index=decision.type_index, order=order.tolist(), wake_s=wake_s, memory=kept)


__all__ = ["las"]
