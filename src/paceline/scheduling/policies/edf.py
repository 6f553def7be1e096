"""Policy of earliest deadline first."""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.policies.solvers.sizes import goodputs, on_one_type
from paceline.scheduling.state import Decision, State


def edf(state: State, largest: bool = False) -> Decision:
    """Serve jobs by deadline, with jobs without a deadline last. Each gets the number of devices on which it is fastest.

    Args:
        largest: give the largest number on which it runs at all, however slow (ElasticFlow's simulator).
    """
    devices, types = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    left = state.capacity.copy()
    order = sorted(range(len(state.jobs)), key=lambda index: state.jobs[index].deadline_s)
    for index in order:
        if not left.any():
            break
        best = 0.0
        for group in on_one_type(state, index):
            table = goodputs(state, index, group, int(left[group]))
            size = _largest(table) if largest else int(table.argmax())
            if table[size] > best:
                best, devices[index], types[index] = float(table[size]), size, group
        if devices[index]:
            left[types[index]] -= devices[index]
    reasons = {index: "the earliest deadline that is left" for index in order if state.jobs[index].deadline_s < math.inf}
    return Decision(devices=devices, type_index=types, order=order, reasons=reasons, holds_until_s=math.inf)


def _largest(table: Array) -> int:
    return int(np.flatnonzero(table).max(initial=0))
