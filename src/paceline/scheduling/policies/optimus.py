"""Marginal gain (Optimus, EuroSys 2018, section 4.1): one device each, then each device where it saves the most time."""

from __future__ import annotations

import heapq

import numpy as np

from paceline.array_types import Array
from paceline.scheduling.state import Decision, State


def optimus(state: State) -> Decision:
    """Give the next device to the job whose remaining time falls most by it.

    Where the work left is unknown, the time of a unit of progress counts.
    """
    devices = np.zeros(len(state.jobs), np.int64)
    left = int(state.capacity[0])
    tables = []
    heap: list[tuple[float, int]] = []
    for index, outlook in enumerate(state.outlooks):
        most = min(outlook.max_devices(), state.fleet.groups[0].devices)
        seconds = outlook.seconds_left(0, most)
        if np.isnan(seconds).any():
            with np.errstate(divide="ignore"):
                seconds = 1.0 / outlook.goodput(0, most)
        tables.append(seconds)
        if left >= 1:
            devices[index], left = 1, left - 1
    for index, seconds in enumerate(tables):
        if devices[index]:
            _push(heap, seconds, index, 1)
    while left > 0 and heap:
        gain, index = heapq.heappop(heap)
        if gain >= 0:
            break
        devices[index] += 1
        left -= 1
        _push(heap, tables[index], index, int(devices[index]))
    order = np.argsort(devices, kind="stable").tolist()
    return Decision(devices=devices, type_index=np.zeros(len(devices), np.int64), order=order)


def _push(heap: list[tuple[float, int]], seconds: Array, index: int, held: int) -> None:
    if held + 1 < len(seconds):
        heapq.heappush(heap, (float(seconds[held + 1] - seconds[held]), index))


__all__ = ["optimus"]
