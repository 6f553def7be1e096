"""Integer program of one choice per job, with the least total cost within the devices of each type, solved by HiGHS."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.policies.solvers.device_prices import DevicePrices
from paceline.scheduling.policies.solvers.equal_jobs import PricedChoices, least_near
from paceline.scheduling.policies.solvers.highs import GAP, integers
from paceline.scheduling.policies.solvers.price_rounding import rounded
from paceline.scheduling.policies.solvers.useful_choices import Choices, convex, undominated

if TYPE_CHECKING:
    from scipy.sparse import csr_array

TIME_LIMIT_S = 30.0
"""Time limit of the solver on a slow machine."""
DIRECT = 2000
"""Most choices that go to the solver without pricing."""
TIED = 1e-9
"""Distance to the best choice of a job, relative to the bound, up to which choices are equally good."""


def least_sum(choices: Choices, capacity: Ints, time_limit_s: float = TIME_LIMIT_S) -> Bools | None:
    """Return a mask of the choices taken; None if no allocation was found in time.

    If there are many choices, devices first get prices, which prove a bound, and the choices are rounded at these prices. If
    the sum is not within ``GAP`` of the bound, the solver takes the choices whose cost at these prices is close to the best of
    their job, counted over equal jobs, and then more of them. If time is over, the rounded choices are returned.

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
    worth = worth[undominated(choices.of(worth))]
    return _fixed_with(fixed, worth[_priced(choices.of(worth), np.maximum(left, 0), deadline)])


def _priced(choices: Choices, capacity: Ints, deadline: float) -> Ints:
    """Return the choices taken of many: rounded at the prices of devices, or the solver's best near these prices.

    Args:
        choices: as ``undominated`` returns them. ``deadline``: on the monotonic clock.
    """
    hull = choices.of(convex(choices))
    prices = DevicePrices(hull.job, hull.devices, hull.type_index, hull.cost, capacity)
    prices.smooth()
    best, least = np.zeros(0, np.int64), 0.0
    for gap in (GAP / 2, GAP / 10, 0.0):
        rows = rounded(choices, prices.best, capacity)
        total = float(choices.cost[rows].sum())
        best, least = (rows, total) if total < least else (best, least)
        if least <= prices.bound + GAP * abs(prices.bound) or (gap and not prices.cut(gap, deadline)):
            return best
    enough = prices.bound + GAP * abs(prices.bound)
    priced = PricedChoices.at(choices, prices.best, capacity)
    tolerance, widest = TIED * abs(prices.bound), float(max(priced.beyond.max(), priced.waits.max()))
    while least > enough and time.monotonic() < deadline:
        found = least_near(priced, tolerance, deadline - time.monotonic())
        total = math.inf if found is None else float(choices.cost[found].sum())
        best, least = (found, total) if found is not None and total < least else (best, least)
        if tolerance >= widest:
            break
        tolerance = max(tolerance, GAP * abs(prices.bound) / 80) * 8
    return best


def _fixed_with(fixed: Bools, chosen: Ints | None) -> Bools | None:
    if chosen is None:
        return None
    taken = fixed.copy()
    taken[chosen] = True
    return taken


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
    if not len(indices):
        return indices
    cost, table, most = _program(choices, indices, capacity)
    taken = integers(cost, table, np.full(len(most), -np.inf), most, 1, deadline - time.monotonic())
    return None if taken is None else indices[taken > 0]
