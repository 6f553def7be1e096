"""Policy that trades the reduction of service time against efficiency, the speedup of an extra device.

Source: the abstract of Lin, Paolieri, Chou and Golubchik, MASCOTS 2018, which describes heuristics of this kind. Their
throughput comes from a queueing model of one profiling run, here it comes from the predicted step times.
"""

from __future__ import annotations

import heapq

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.sizes import grown, known_seconds, one_type
from paceline.scheduling.state import Decision, State

EFFICIENCY = 0.5
"""Least speedup by an extra device, relative to the speed per device of the first ones."""


def queueing(state: State, efficiency: float = EFFICIENCY) -> Decision:
    """Run the shortest jobs, each on its least devices, then give each device to the job whose service it shortens most.

    While jobs wait, no job grows onto devices that add less than ``efficiency`` of its first ones. If no job waits, the
    remaining devices go wherever they help.

    Raises:
        UserError: unknown remaining work of a job, or several device types.
    """
    left = one_type(state, "queueing", ("srtf", "max_min"))
    tables = [known_seconds(state, index, 0, state.fleet.groups[0].devices) for index in range(len(state.jobs))]
    with np.errstate(divide="ignore"):
        sizes = [grown(1.0 / table) for table in tables]
    shortest = np.argsort([table[np.isfinite(table)].max(initial=0.0) for table in tables], kind="stable")
    devices = np.zeros(len(tables), np.int64)
    for index in shortest.tolist():
        if sizes[index].size and sizes[index][0] <= left:
            devices[index] = sizes[index][0]
            left -= int(devices[index])
    bounds = (efficiency, 0.0) if devices.all() else (efficiency,)
    for bound in bounds:
        left = _grow(tables, sizes, devices, left, bound)
    order = shortest.tolist()
    return Decision(devices=devices, type_index=np.zeros(len(devices), np.int64), order=order, rule="fewest_nodes")


def _grow(tables: list[Array], sizes: list[Ints], devices: Ints, left: int, efficiency: float) -> int:
    """Grow jobs by the greatest reduction of service time, and return the remaining devices. ``devices`` is changed."""
    heap: list[tuple[float, int, int]] = []

    def push(index: int) -> None:
        held = int(devices[index])
        larger = sizes[index][sizes[index] > held]
        if not held or not larger.size:
            return
        size, seconds, first = int(larger[0]), tables[index], int(sizes[index][0])
        added = (1 / seconds[size] - 1 / seconds[held]) / (size - held)
        if added >= efficiency / seconds[first] / first:
            heapq.heappush(heap, (-(seconds[held] - seconds[size]) / seconds[held] / (size - held), index, size))

    for index in range(len(tables)):
        push(index)
    while left > 0 and heap:
        _, index, size = heapq.heappop(heap)
        more = size - int(devices[index])
        if more <= left:
            devices[index], left = size, left - more
            push(index)
    return left
