"""Policy that chooses running jobs and their nodes by a queueing model of throughput (Lin, Paolieri, Chou, Golubchik, MASCOTS
2018).

The model needs one profiling run: a job alone takes ``compute`` a step, and exchanges queue at one server for ``exchange``.
Mean value analysis of this closed network of n workers gives the throughput. The abstract describes heuristics that trade the
reduction of service time against efficiency, the speedup of an extra node. The rule here is one of them.
"""

from __future__ import annotations

import heapq

import numpy as np

from paceline.array_types import Array, Ints
from paceline.scheduling.policies.solvers.sizes import grown, known_seconds, one_type
from paceline.scheduling.state import Decision, State

EFFICIENCY = 0.5
"""Least speedup by an extra device, relative to the speed per device of the first ones."""


def throughput(compute_s: float, exchange_s: float, most: int) -> Array:
    """Return steps a second of 0 to ``most`` workers, shape (most + 1,), by mean value analysis of one server and a delay.

    Source: Reiser and Lavenberg, 1980.
    """
    table, queue = np.zeros(most + 1), 0.0
    for workers in range(1, most + 1):
        wait = exchange_s * (1 + queue)
        table[workers] = workers / (compute_s + wait)
        queue = table[workers] * wait
    return table


def profiled(step_s: float, exchange_s: float, most: int, workers: int = 2) -> Array:
    """Return ``throughput`` from one profiling run.

    Args:
        step_s: seconds of a step of each of ``workers`` in the run, including exchange and waiting.
        exchange_s: seconds of one worker's exchange alone: bytes over bandwidth.
    """
    low, high = 0.0, max(step_s - exchange_s, 0.0)
    for _ in range(60):  # the step grows with the time of its computation
        middle = (low + high) / 2
        longer = workers / float(throughput(middle, exchange_s, workers)[workers]) > step_s
        low, high = (low, middle) if longer else (middle, high)
    return throughput((low + high) / 2, exchange_s, most)


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


__all__ = ["profiled", "queueing", "throughput"]
