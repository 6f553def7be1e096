"""Integer program of one choice per job, with the least total cost within the devices of each type, solved by HiGHS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.policies.solvers.device_prices import DevicePrices
from paceline.scheduling.policies.solvers.knapsack import Sizes, least_total

if TYPE_CHECKING:
    from scipy.sparse import csr_array

GAP = 1e-4
"""Relative gap to the best sum at which the solver stops."""
MOST_NODES = 500
"""Most nodes of the solver's search tree; then the best allocation so far is used.

A count gives every machine the same result.
"""
TIME_LIMIT_S = 30.0
"""Time limit of the solver on a slow machine."""
DIRECT = 2000
"""Most choices that go to the solver without pricing."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Possible allocations of each job. Arrays have one entry per choice.

    Attributes:
        job: number of the job.
        devices, type_index: devices it takes, and their type.
        cost: cost of the choice. A job without a choice costs 0.
        fixed: True if it must be taken; it is then the job's only choice.
    """

    job: Ints
    devices: Ints
    type_index: Ints
    cost: Array
    fixed: Bools


def least_sum(choices: Choices, capacity: Ints, time_limit_s: float = TIME_LIMIT_S) -> Bools | None:
    """Return a mask of the choices taken; None if the solver found no allocation in time.

    If there are many choices, devices first get prices, which prove a bound. Each type is then filled by the jobs that want it
    most at these prices. If the sum is not within ``GAP`` of the bound, the solver takes the choices whose cost at these prices
    is close to the best of their job, and then more of them.

    Args:
        capacity: devices of each type.
    """
    deadline = time.monotonic() + time_limit_s
    fixed = choices.fixed
    held = np.bincount(choices.type_index[fixed], choices.devices[fixed], len(capacity))
    left = capacity - held.astype(np.int64)
    worth = np.flatnonzero((choices.cost < 0) & ~fixed)  # other choices are never better than none
    if len(worth) <= DIRECT:
        return _fixed_with(fixed, _solved(choices, worth, left, deadline))
    worth = worth[np.argsort(choices.job[worth], kind="stable")]
    prices = DevicePrices(choices.job[worth], choices.devices[worth], choices.type_index[worth], choices.cost[worth], left)
    prices.smooth()
    for gap in (GAP / 2, GAP / 10, 0.0):
        rounded = _rounded(choices, worth, prices.reduced, left)
        if choices.cost[rounded].sum() <= prices.bound + GAP * abs(prices.bound):
            return _fixed_with(fixed, rounded)
        if gap and not prices.cut(gap, deadline):
            return None
    bound, reduced = prices.bound, prices.reduced
    tolerance, best = GAP * abs(bound) / 10, None
    while True:
        near = reduced <= tolerance
        solution = _solved(choices, worth[near], left, deadline)
        best = best if solution is None else solution
        done = solution is not None and choices.cost[solution].sum() <= bound + GAP * abs(bound)
        if done or near.all() or time.monotonic() >= deadline:
            return _fixed_with(fixed, best)
        tolerance *= 8


def _fixed_with(fixed: Bools, chosen: Ints | None) -> Bools | None:
    if chosen is None:
        return None
    taken = fixed.copy()
    taken[chosen] = True
    return taken


def _rounded(choices: Choices, indices: Ints, reduced: Array, capacity: Ints) -> Ints:
    """Round the solution of the linear program, one type after another.

    A job is tried on the type of its best choice at the prices, then, if it gets nothing there, on the next types.

    Args:
        reduced: cost of each choice beyond the best of its job at the prices.
    """
    job, devices, types, cost = (part[indices] for part in (choices.job, choices.devices, choices.type_index, choices.cost))
    home = np.full(int(job.max(initial=-1)) + 1, -1)
    best = reduced <= 0
    home[job[best]] = types[best]
    taken: list[Ints] = []
    for kind, there in enumerate(capacity.tolist()):
        rows = np.flatnonzero((types == kind) & ((home[job] == kind) | (home[job] < 0)))
        if not rows.size:
            continue
        rows = rows[np.lexsort((cost[rows], devices[rows], job[rows]))]
        first = np.flatnonzero(np.diff(job[rows], prepend=-1))
        sizes = Sizes(np.insert(devices[rows], first, 0), np.insert(cost[rows], first, 0.0), first + np.arange(len(first)))
        given = least_total(sizes, there)
        gets = np.zeros(len(home), np.int64)
        gets[job[rows[first]]] = given
        chosen = rows[devices[rows] == gets[job[rows]]]
        chosen = chosen[np.diff(job[chosen], prepend=-1) > 0]  # one per job
        home[home == kind] = -1
        home[job[chosen]] = len(capacity)
        taken.append(indices[chosen])
    return np.sort(np.concatenate(taken)) if taken else indices[:0]


def _program(choices: Choices, indices: Ints, capacity: Ints) -> tuple[Array, csr_array, Array]:
    """Return costs and constraints: at most one choice per job, and at most the capacity of each type."""
    from scipy.sparse import csr_array

    count = len(indices)
    _, job_rows = np.unique(choices.job[indices], return_inverse=True)
    jobs = int(job_rows.max()) + 1
    rows = np.concatenate([job_rows, jobs + choices.type_index[indices]])
    entries = np.concatenate([np.ones(count), choices.devices[indices].astype(float)])
    table = csr_array((entries, (rows, np.tile(np.arange(count), 2))), shape=(jobs + len(capacity), count))
    return choices.cost[indices], table, np.concatenate([np.ones(jobs), capacity])


def _solved(choices: Choices, indices: Ints, capacity: Ints, deadline: float) -> Ints | None:
    """Return the best of these choices; None if nothing was found in time."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not len(indices):
        return indices
    cost, table, most = _program(choices, indices, capacity)
    with _quiet():
        result = milp(
            cost,
            integrality=np.ones(len(indices)),
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(table, -np.inf, most),
            options={"time_limit": max(deadline - time.monotonic(), 0.01), "node_limit": MOST_NODES, "mip_rel_gap": GAP},
        )
    return None if result.x is None else indices[result.x > 0.5]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the output of HiGHS, which prints a debug line when it repairs a solution, whatever its options."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
