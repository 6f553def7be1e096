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
MOST_PRICES = 200
"""Most price vectors that are tried."""


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

    If there are many choices, devices first get prices. Choices whose cost at these prices is close to the best of their job
    are enough if their sum is within ``GAP`` of the bound that the prices prove. Otherwise more choices are added.

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
    priced = _priced(choices, worth, left, deadline)
    if priced is None:
        return None
    bound, reduced = priced
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


def _priced(choices: Choices, indices: Ints, capacity: Ints, deadline: float) -> tuple[float, Array] | None:
    """Find prices of devices at which the demand of the jobs is about the capacity.

    At any prices, the payments of the jobs minus the price of all devices bound the least sum from below. Cutting planes find
    the prices of the largest such bound: every answer of the jobs bounds it from above (Kelley, 1960).

    Returns:
        The bound, which is that of the linear program to a tenth of ``GAP``, and the cost of each choice beyond the best of
            its
        job at these prices. None: no time was left.
    """
    from scipy.optimize import linprog

    by_job = np.argsort(choices.job[indices], kind="stable")
    own = indices[by_job]
    job, devices, types, cost = choices.job[own], choices.devices[own], choices.type_index[own], choices.cost[own]
    first = np.flatnonzero(np.diff(job, prepend=-1))
    rows = np.cumsum(np.diff(job, prepend=job[0]) != 0)
    prices, highest = np.zeros(len(capacity)), np.zeros(len(capacity))
    np.maximum.at(highest, types, -cost / devices)  # no job wants devices at these prices
    bound, upper, reduced, cuts = -np.inf, np.inf, cost, list[Array]()
    for _ in range(MOST_PRICES):
        if time.monotonic() >= deadline:
            return None
        paid = cost + prices[types] * devices
        least = np.minimum(np.minimum.reduceat(paid, first), 0.0)
        answer = float(least.sum() - prices @ capacity)
        if answer > bound:
            bound, reduced = answer, paid - least[rows]
        if upper - bound <= GAP / 10 * abs(bound):
            break
        wanted = np.flatnonzero((paid == least[rows]) & (paid < 0))
        wanted = wanted[np.diff(rows[wanted], prepend=-1) > 0]  # one per job
        used = np.bincount(types[wanted], devices[wanted], len(capacity))
        cuts.append(np.concatenate([capacity - used, [1.0, cost[wanted].sum()]]))
        table = np.array(cuts)
        ranges = [*((0.0, price) for price in highest), (None, None)]
        master = linprog([*[0.0] * len(capacity), -1.0], A_ub=table[:, :-1], b_ub=table[:, -1], bounds=ranges, method="highs")
        prices, upper = master.x[:-1], float(master.x[-1])
    beyond = np.empty_like(reduced)
    beyond[by_job] = reduced
    return bound, beyond


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
