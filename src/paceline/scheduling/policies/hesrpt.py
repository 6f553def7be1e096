"""Policy heSRPT (Berg, Vesilo, Harchol-Balter 2020, theorem 1) for known sizes and a speedup of n^p on n devices.

With m jobs, the job of the i-th largest remaining size gets the share ``(i/m)^(1/(1-p)) - ((i-1)/m)^(1/(1-p))`` of the cluster,
so the smallest gets the most. This minimizes the mean completion time of present jobs with a common p.

If the devices do not suffice for the least size of each job, only the smallest jobs share them.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.policies.solvers.sizes import grown, known_seconds, one_type
from paceline.scheduling.state import Decision, State

STEEPEST = 0.99
"""Largest p, as a larger one would give everything to the smallest job. p is fitted to the speedups of the jobs."""


def hesrpt(state: State) -> Decision:
    """Give the shares of the theorem, rounded to sizes on which the jobs can run.

    Raises:
        UserError: unknown remaining work of a job, or several device types.
    """
    capacity = one_type(state, "hesrpt", ("srtf", "max_min"))
    tables = [known_seconds(state, index, 0, state.fleet.groups[0].devices) for index in range(len(state.jobs))]
    least = np.array([table[np.isfinite(table)].max(initial=0.0) for table in tables])
    every = np.argsort(least, kind="stable")
    devices, left = np.zeros(len(tables), np.int64), capacity
    ascending = every[_fitting(np.array([int(np.isfinite(table).argmax()) for table in tables])[every], capacity)]
    share = shares(max(len(ascending), 1), exponent(tables))[::-1] * capacity  # the smallest job first
    spare = 0.0
    for index, wish in zip(ascending.tolist(), share.tolist(), strict=False):
        spare += wish
        with np.errstate(divide="ignore"):
            sizes = grown(1.0 / tables[index])
        fits = sizes[sizes <= min(left, round(spare))]
        if fits.size:
            devices[index] = fits[-1]
            left -= int(fits[-1])
            spare -= float(fits[-1])
    for index in ascending.tolist():  # what rounding left over
        with np.errstate(divide="ignore"):
            sizes = grown(1.0 / tables[index])
        fits = sizes[(sizes > devices[index]) & (sizes <= devices[index] + left)]
        if fits.size:
            left -= int(fits[-1] - devices[index])
            devices[index] = fits[-1]
    return Decision(devices=devices, type_index=np.zeros(len(devices), np.int64), order=every.tolist(), rule="fewest_nodes")


def _fitting(sizes: Ints, capacity: int) -> Bools:
    """Return a mask of the jobs whose least sizes fit together, in order; a job that cannot run has size 0 and is left out."""
    fits, left = np.zeros(len(sizes), bool), capacity
    for index, size in enumerate(sizes.tolist()):
        if 0 < size <= left:
            fits[index], left = True, left - size
    return fits


def exponent(tables: list[Array]) -> float:
    """Return the p of n^p: median over jobs of the slope from the least to the fastest size; 0 if no job gains."""
    slopes = []
    for seconds in tables:
        legal = np.flatnonzero(np.isfinite(seconds))
        if legal.size > 1:
            best = int(seconds.argmin())
            if best > legal[0]:
                slopes.append(math.log(seconds[legal[0]] / seconds[best]) / math.log(best / legal[0]))
    return float(np.clip(np.median(slopes), 0.0, STEEPEST)) if slopes else 0.0


def shares(jobs: int, p: float) -> Array:
    """Return the shares of the jobs, largest remaining size first; shape (jobs,), sum 1."""
    return np.diff((np.arange(jobs + 1) / jobs) ** (1.0 / (1.0 - p)))
