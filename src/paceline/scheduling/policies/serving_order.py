"""Policies that serve rigid jobs one after the other: first in, first out, and shortest remaining time first."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from paceline.scheduling.policies.solvers.rigid import all_served, filled
from paceline.scheduling.policies.solvers.sizes import known_seconds, on_one_type
from paceline.scheduling.state import Decision, State


def fifo(state: State) -> Decision:
    """Serve jobs in order of arrival. A job that does not fit blocks later ones on the types that it may use.

    Running jobs keep their devices.
    """
    order = np.argsort(state.devices == 0, kind="stable")
    return replace(filled(state, order, blocking=True), holds_until_s=math.inf)


def srtf(state: State, preemptive: bool = True) -> Decision:
    """Serve jobs by the remaining seconds on the requested devices. Jobs that do not fit are skipped.

    For a waiting job the cost of its start is added, so that a running job is stopped only if that pays.

    Args:
        preemptive: True if a running job may be stopped.

    Raises:
        UserError: unknown remaining work of a job.
    """
    count = len(state.jobs)
    seconds = np.full(count, np.inf)
    for index in range(count):
        asked = int(state.requested[index])
        for group in on_one_type(state, index):
            table = known_seconds(state, index, group, asked)
            if len(table) > asked:
                seconds[index] = min(seconds[index], table[asked])
    runs = state.devices > 0
    seconds = seconds + np.where(runs, 0.0, state.restart_s)
    order = np.lexsort((seconds, ~runs)) if not preemptive else np.argsort(seconds, kind="stable")
    decision = filled(state, order)
    return replace(decision, holds_until_s=math.inf) if all_served(state) else decision
