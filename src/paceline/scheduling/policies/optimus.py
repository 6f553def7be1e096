"""Policy of marginal gain (Optimus, EuroSys 2018, section 4.1): one device per job, then each where it saves the most time."""

from __future__ import annotations

import heapq
import math

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.state import Decision, State


def optimus(state: State) -> Decision:
    """Give the next device to the job whose remaining time decreases most. A job that needs several gets them at once.

    If the remaining work is unknown, the time per unit of progress is used.
    """
    devices = np.zeros(len(state.jobs), np.int64)
    left = int(state.capacity[0])
    tables = []
    heap: list[tuple[float, int, int]] = []
    for index, outlook in enumerate(state.outlooks):
        most = min(outlook.max_devices(), state.fleet.groups[0].devices)
        seconds = outlook.seconds_left(0, most)
        if np.isnan(seconds).any():
            with np.errstate(divide="ignore"):
                seconds = 1.0 / outlook.goodput(0, most)
        tables.append(seconds)
        least = int(np.isfinite(seconds).argmax())  # 0: it runs on no size
        if left >= least:
            devices[index], left = least, left - least
    for index, seconds in enumerate(tables):
        if devices[index]:
            _push(heap, seconds, index, int(devices[index]))
    while left > 0 and heap:
        gain, index, more = heapq.heappop(heap)
        if gain >= 0:
            break
        if more > left:
            continue
        devices[index] += more
        left -= more
        _push(heap, tables[index], index, int(devices[index]))
    order = np.argsort(devices, kind="stable").tolist()
    return Decision(devices=devices, type_index=np.zeros(len(devices), np.int64), order=order)


def _push(heap: list[tuple[float, int, int]], seconds: Array, index: int, held: int) -> None:
    """Add the gain of a job from its next size, in seconds per device."""
    for more, later in enumerate(seconds[held + 1 :].tolist(), 1):
        if later < math.inf:
            heapq.heappush(heap, ((later - float(seconds[held])) / more, index, more))
            return
