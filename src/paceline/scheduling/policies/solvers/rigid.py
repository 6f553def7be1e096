"""Allocation of rigid jobs in a given order."""

from __future__ import annotations

import numpy as np

from paceline.array_types import Bools, Ints
from paceline.scheduling.state import Decision, State


def filled(state: State, order: Ints, blocking: bool = False) -> Decision:
    """Give each job the requested devices, in order, on the first type that it may use and that has enough.

    Args:
        order: jobs in the order of service.
        blocking: True if a job that does not fit blocks later ones on every type that it may use.
    """
    devices, types = np.zeros(len(order), np.int64), np.full(len(order), -1)
    left = state.capacity.copy()
    if len(left) == 1 and not any(job.device_types for job in state.jobs):
        taken = _fill(state.requested[order], int(left[0]), blocking)
        devices[order] = np.where(taken, state.requested[order], 0)
        types[order] = np.where(taken, 0, -1)
        return Decision(devices=devices, type_index=types, order=order.tolist())
    for index in order:
        asked = int(state.requested[index])
        held = int(state.type_index[index])
        allowed = [t for t, name in enumerate(state.fleet.types) if state.jobs[index].may_use(name)]
        legal = [t for t in allowed if left[t] >= asked]
        if legal:
            chosen = held if held in legal else legal[0]
            devices[index], types[index] = asked, chosen
            left[chosen] -= asked
        elif blocking:
            left[[t for t in allowed if state.capacity[t] >= asked] or allowed] = 0
        if not left.any():
            break
    return Decision(devices=devices, type_index=types, order=order.tolist())


def all_served(state: State) -> bool:
    """Return whether all jobs are rigid and served. A work-conserving policy then changes nothing."""
    return bool((state.devices == state.requested).all()) and not any("devices" in job.adapts for job in state.jobs)


def _fill(asked: Ints, capacity: int, blocking: bool) -> Bools:
    """Return a mask of the demands that fit the capacity, in order."""
    taken = np.zeros(len(asked), bool)
    start, left = 0, capacity
    while start < len(asked) and left > 0:
        sums = asked[start:].cumsum()
        fit = int(sums.searchsorted(left, "right"))
        taken[start : start + fit] = True
        left -= int(sums[fit - 1]) if fit else 0
        if blocking:
            break
        start += fit + 1
        small = np.flatnonzero(asked[start:] <= left)  # the next that still fits
        if not small.size:
            break
        start += int(small[0])
    return taken
