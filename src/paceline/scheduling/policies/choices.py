"""One choice a job so that the costs are least in sum and the devices of each type suffice: an integer program by HiGHS."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from paceline.array_types import Array, Bools, Ints

GAP = 1e-4
"""The solver stops within this share of the best sum."""
MOST_NODES = 500
"""Of the solver's tree; then the best allocation so far counts. A count stops every machine at the same allocation."""
TIME_LIMIT_S = 30.0
"""For the solver, where a machine is so slow that a decision would never come."""
DIRECT = 2000
"""So many choices go to the solver as they are."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What each job may get. Arrays have one entry a choice.

    Attributes:
        job: its number. ``devices`` of ``type_index``: what it takes.
        cost: what it adds to the sum; a job without a choice adds 0.
        fixed: whether it must be taken; it is then its job's only one.
    """

    job: Ints
    devices: Ints
    type_index: Ints
    cost: Array
    fixed: Bools


def least_sum(choices: Choices, capacity: Ints, time_limit_s: float = TIME_LIMIT_S) -> Bools | None:
    """Which choices are taken; None: the solver found no allocation in the time.

    Many choices are first priced by the linear program: those that cost little more than their job's best at these prices are
    enough where their sum comes within ``GAP`` of the linear bound; else more are added.

    Args:
        capacity: devices of each type.
    """
    deadline = time.monotonic() + time_limit_s
    fixed = choices.fixed
    held = np.bincount(choices.type_index[fixed], choices.devices[fixed], len(capacity))
    left = capacity - held.astype(np.int64)
    worth = np.flatnonzero((choices.cost < 0) & ~fixed)  # others are never better than none
    if len(worth) <= DIRECT:
        return _with(fixed, _solved(choices, worth, left, deadline))
    cost, table, most = _program(choices, worth, left)
    bound = linprog(cost, A_ub=table, b_ub=most, method="highs-ipm", options={"time_limit": time_limit_s})
    if bound.x is None:
        return None
    reduced = cost - table.T @ bound.ineqlin.marginals
    tolerance, best = GAP * abs(bound.fun) / 10, None
    while True:
        near = reduced <= tolerance
        solution = _solved(choices, worth[near], left, deadline)
        best = best if solution is None else solution
        done = solution is not None and choices.cost[solution].sum() <= bound.fun + GAP * abs(bound.fun)
        if done or near.all() or time.monotonic() >= deadline:
            return _with(fixed, best)
        tolerance *= 8


def _with(fixed: Bools, chosen: Ints | None) -> Bools | None:
    if chosen is None:
        return None
    taken = fixed.copy()
    taken[chosen] = True
    return taken


def _program(choices: Choices, indices: Ints, capacity: Ints) -> tuple[Array, csr_array, Array]:
    """Costs, and the rows: at most one choice a job, no more devices of a type than there are."""
    count = len(indices)
    _, job_rows = np.unique(choices.job[indices], return_inverse=True)
    jobs = int(job_rows.max()) + 1
    rows = np.concatenate([job_rows, jobs + choices.type_index[indices]])
    entries = np.concatenate([np.ones(count), choices.devices[indices].astype(float)])
    table = csr_array((entries, (rows, np.tile(np.arange(count), 2))), shape=(jobs + len(capacity), count))
    return choices.cost[indices], table, np.concatenate([np.ones(jobs), capacity])


def _solved(choices: Choices, indices: Ints, capacity: Ints, deadline: float) -> Ints | None:
    """The best of these choices; None: nothing was found in time."""
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
    """HiGHS prints a line of its own code where it repairs a solution, whatever its options: nothing of it is shown."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


__all__ = ["TIME_LIMIT_S", "Choices", "least_sum"]
