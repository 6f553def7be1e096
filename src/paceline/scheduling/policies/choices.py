"""One choice a job so that the costs are least in sum and the devices of each type suffice: an integer program by HiGHS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from paceline.array_types import Array, Bools, Ints

GAP = 1e-4
"""The solver stops within this share of the best sum."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What each job may get. Arrays have one entry a choice.

    Attributes:
        job: its number. ``devices`` of ``type_index``: what it takes.
        cost: what it adds to the sum; a job without a choice adds 0.
        fixed: whether it must be taken.
    """

    job: Ints
    devices: Ints
    type_index: Ints
    cost: Array
    fixed: Bools


def least_sum(choices: Choices, capacity: Ints, time_limit_s: float) -> Bools | None:
    """Which choices are taken; None: the solver found no allocation in the time.

    Args:
        capacity: devices of each type.
    """
    worth = np.flatnonzero((choices.cost < 0) | choices.fixed)  # others are never better than none
    if not worth.size:
        return np.zeros(len(choices.job), bool)
    count = len(worth)
    columns = np.arange(count)
    _, job_rows = np.unique(choices.job[worth], return_inverse=True)
    jobs = int(job_rows.max()) + 1
    rows = np.concatenate([job_rows, jobs + choices.type_index[worth]])
    entries = np.concatenate([np.ones(count), choices.devices[worth].astype(float)])
    table = csr_array((entries, (rows, np.tile(columns, 2))), shape=(jobs + len(capacity), count))
    most = np.concatenate([np.ones(jobs), capacity.astype(float)])
    result = milp(
        choices.cost[worth],
        integrality=np.ones(count),
        bounds=Bounds(choices.fixed[worth].astype(float), 1.0),
        constraints=LinearConstraint(table, -np.inf, most),
        options={"time_limit": time_limit_s, "mip_rel_gap": GAP},
    )
    if result.x is None:
        return None
    taken = np.zeros(len(choices.job), bool)
    taken[worth[result.x > 0.5]] = True
    return taken


__all__ = ["Choices", "least_sum"]
