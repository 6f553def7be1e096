"""Policies of aggressive backfill (EASY): jobs in order of arrival, and a later one starts early if the first is not delayed.

Lifka, The ANL/IBM SP scheduling system, 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, section 2. The first waiting job
has a reservation at the earliest time at which enough devices are expected to be free. Each device type has one reservation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np

from paceline.scheduling.conditions import is_protected
from paceline.scheduling.policies.backfill.plan import BackfillPlan, by_priority
from paceline.scheduling.policies.backfill.preemption import Preemption, fewest
from paceline.scheduling.state import Decision, State


def easy(state: State, preempting: bool = False) -> Decision:
    """Start jobs by priority and arrival, and give the first that must wait on each type a reservation.

    Args:
        preempting: let a job take devices from running jobs of lower priority.
    """
    plan, order = BackfillPlan(state), by_priority(state).tolist()
    preemption = Preemption(plan, fewest)
    running = _least_first(state) if preempting else []
    priorities = [state.jobs[other].priority for other in running]
    reserved: set[int] = set()
    for index in order:
        if plan.start(index):
            continue
        lower = running[: bisect_left(priorities, state.jobs[index].priority)]
        if preempting and preemption.make_room(index, lower) and plan.start(index):
            continue
        if len(reserved | plan.closed) < len(state.fleet.groups) and (group := plan.earliest(index)[2]) not in reserved:
            reserved.add(group)
            plan.reserve(index)
    decision = plan.decision(order)
    return replace(decision, holds_until_s=-math.inf, preempted=preemption.victims) if preempting else decision


def _least_first(state: State) -> list[int]:
    """Return the running jobs that may be preempted: the least and then the latest started first."""
    held = np.flatnonzero(state.devices).tolist()
    legal = [other for other in held if not is_protected(state.jobs[other], float(state.held_s[other]))]
    return sorted(legal, key=lambda other: (state.jobs[other].priority, state.held_s[other]))


def priority(state: State) -> Decision:
    """Serve jobs by priority, and take devices from running jobs of lower priority. Equal ones wait as under ``easy``."""
    return easy(state, preempting=True)
