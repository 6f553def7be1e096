"""Policy of least attained service in a few queues, first in first out within each (Tiresias, NSDI 2019, section 4: discretised
2D-LAS).

A job whose device-seconds reach a threshold moves to the next queue for good. Jobs are rigid. Jobs that do not fit are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.scheduling.policies.solvers.rigid import filled
from paceline.scheduling.state import Decision, State

THRESHOLD_S = 16 * 3600.0
"""Device-seconds of the first queue (Tiresias in Pollux's simulator)."""

ROUNDING_S = 1e-3
"""Tolerance at a threshold, because the time of reaching it is rounded."""
MARGIN_S = 1.0
"""Time before a threshold at which the promise of equal decisions ends."""


def las(state: State, thresholds_s: Sequence[float] = (THRESHOLD_S,)) -> Decision:
    """Serve the first queue, then the next.

    Args:
        thresholds_s: device-seconds at which a job leaves each queue but the last, ascending.
    """
    known: dict[str, tuple[int, int]] = dict(state.memory or {})
    service, bounds = state.ran_s * state.requested, np.array([*thresholds_s, math.inf])
    queues = np.searchsorted(bounds, service + ROUNDING_S, "right")
    last = max((place for _, place in known.values()), default=-1)
    places = np.full(len(state.jobs), -1)
    demoted: dict[str, tuple[int, int]] = {}
    for index in np.flatnonzero(queues).tolist():
        name, queue = state.jobs[index].name, int(queues[index])
        before = known.get(name)
        if before is None or before[0] < queue:
            last += 1
            before = queue, last
        demoted[name], places[index] = before, before[1]
    order = np.lexsort((np.arange(len(queues)), places, queues))
    decision = filled(state, order)
    left = np.where(decision.devices > 0, (bounds[queues] - service) / np.maximum(state.requested, 1), math.inf)
    wake_s = state.time_s + float(left.min(initial=math.inf))
    return replace(decision, wake_s=wake_s, holds_until_s=wake_s - MARGIN_S, memory=demoted)
