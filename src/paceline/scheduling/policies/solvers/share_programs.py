"""Linear programs over time shares: the part of the time of each job on each device type (Gavel, OSDI 2020, section 4).

Shares x have shape (jobs, types), ``x >= 0``. The shares of a job sum to at most 1, and devices times shares fit each type.
HiGHS returns a corner of the optimum, where jobs without influence on it get all or nothing. Gavel's figures come from an
interior-point solver (ECOS), which ends in the middle of all optima. ``centred`` goes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paceline.array_types import Array, Bools, Ints

if TYPE_CHECKING:
    from scipy.sparse import csc_array

SLACK = 1e-3
"""Relative tolerance of the optimum within which the middle is taken."""
_STAGES = (0.5, 0.1, 0.02, 0.004)
_STEPS, _CLOSE = 12, 1e-2


@dataclass(frozen=True)
class ShareLimits:
    """Constraints of the shares.

    Attributes:
        devices: devices of each job; shape (jobs,). ``capacity``: devices of each type; shape (types,).
        legal: types that a job can run on, at least one; shape (jobs, types).
    """

    devices: Ints
    capacity: Ints
    legal: Bools


def highest_level(limits: ShareLimits, rates: Array) -> tuple[float, Array]:
    """Return the largest z with ``sum over types of rates * x >= z`` for each job, and shares that reach it.

    Args:
        rates: progress rates, above 0 if legal; shape (jobs, types).
    """
    from scipy.sparse import csc_array

    jobs, types = rates.shape
    rates = np.where(limits.legal, rates, 0.0)
    scale = float(rates.max(axis=1).min())
    rows, columns, values = _base(limits)
    job, kind = np.nonzero(limits.legal)
    rows = np.concatenate([rows, types + jobs + job, types + jobs + np.arange(jobs)])
    columns = np.concatenate([columns, job * types + kind, np.full(jobs, jobs * types)])
    values = np.concatenate([values, -rates[job, kind] / scale, np.ones(jobs)])
    matrix = csc_array((values, (rows, columns)), shape=(types + 2 * jobs, jobs * types + 1))
    bounds = np.concatenate([limits.capacity, np.ones(jobs), np.zeros(jobs)])
    objective = np.zeros(jobs * types + 1)
    objective[-1] = -1.0
    shares = _solved(objective, matrix, bounds, limits)
    return float(shares[-1]) * scale, shares[:-1].reshape(jobs, types)


def most_value(limits: ShareLimits, values: Array, needs: Array | None = None) -> Array | None:
    """Return the shares of the largest ``sum of values * x``; None if the needs cannot be met.

    Args:
        values: shape (jobs, types).
        needs: ``(rates, least)`` rows, ``sum over types of rates * x >= least``; shape (jobs, types + 1), the last column
            ``least``; None: no needs.
    """
    from scipy.sparse import csc_array

    jobs, types = values.shape
    rows, columns, entries = _base(limits)
    bounds = np.concatenate([limits.capacity, np.ones(jobs)])
    if needs is not None:
        job, kind = np.nonzero(limits.legal)
        rows = np.concatenate([rows, types + jobs + job])
        columns = np.concatenate([columns, job * types + kind])
        entries = np.concatenate([entries, -needs[job, kind]])
        bounds = np.concatenate([bounds, -needs[:, -1]])
    matrix = csc_array((entries, (rows, columns)), shape=(len(bounds), jobs * types))
    scale = max(float(values.max(initial=0.0)), 1e-300)
    shares = _solved(-np.where(limits.legal, values, 0.0).ravel() / scale, matrix, bounds, limits)
    return None if np.isnan(shares).any() else shares.reshape(jobs, types)


def _base(limits: ShareLimits) -> tuple[Ints, Ints, Array]:
    """Return rows, columns and entries of the capacities, then of each job's sum."""
    job, kind = np.nonzero(limits.legal)
    at = job * limits.legal.shape[1] + kind
    entries = np.concatenate([limits.devices[job].astype(float), np.ones(len(job))])
    return np.concatenate([kind, limits.legal.shape[1] + job]), np.concatenate([at, at]), entries


def _solved(objective: Array, matrix: csc_array, bounds: Array, limits: ShareLimits) -> Array:
    """Return the corner found by HiGHS; NaN if infeasible."""
    from scipy.optimize import linprog

    most = np.concatenate([limits.legal.ravel().astype(float), np.full(len(objective) - limits.legal.size, np.inf)])
    answer = linprog(
        objective, A_ub=matrix, b_ub=bounds, bounds=np.stack([np.zeros_like(most), most], axis=1), method="highs-ds"
    )
    return np.asarray(answer.x if answer.status == 0 else np.full(len(objective), np.nan))


def centred(
    limits: ShareLimits, corner: Array, rates: Array, least: Array, value: Array | None = None, slack: float = SLACK
) -> Array:
    """Return the analytic centre of all shares that are nearly as good as a corner.

    Args:
        corner: an optimum; shape (jobs, types).
        rates, least: rows ``sum over types of rates * x >= least * (1 - slack)``; shapes (jobs, types) and (jobs,). Rows with
            ``least`` 0 do not bind.
        value: objective whose sum over all jobs stays within the slack too; None: only the rows count.
    """
    shares, before = _inside(limits, rates), 1.0
    for stage in (*(s for s in _STAGES if s > slack), slack):
        mix = 0.9 * stage / before
        shares, before = (1 - mix) * corner + mix * shares, stage
        total = None if value is None else (value, float((value * corner).sum()) * (1 - stage))
        shares = _newton(limits, shares, rates, least * (1 - stage), total)
    return np.where(limits.legal, shares, 0.0)


def _inside(limits: ShareLimits, rates: Array) -> Array:
    """Return shares well inside all limits: a fair part of each type for each job."""
    per_type = limits.capacity / np.maximum((limits.devices[:, None] * limits.legal).sum(axis=0), 1)
    fair = np.minimum(np.where(limits.legal, per_type, 0.0), 1.0)
    return np.asarray(0.5 * fair / np.maximum(fair.sum(axis=1, keepdims=True), 1.0))


def _newton(limits: ShareLimits, shares: Array, rates: Array, least: Array, total: tuple[Array, float] | None) -> Array:
    """Maximize the sum of the logarithms of all slacks by Newton's method. Every iterate is legal, so it may stop anywhere."""
    legal, bound = np.ascontiguousarray(limits.legal.T), least > 0  # arrays of types and jobs here
    types, shares = len(legal), np.ascontiguousarray(shares.T)
    devices = np.where(legal, limits.devices, 0.0)
    value, worth = (np.zeros_like(shares), -1.0) if total is None else (np.where(legal, total[0].T, 0.0), total[1])
    rates = np.where(legal & bound, rates.T, 0.0)
    binds = np.append(limits.capacity > 0, total is not None)
    for _ in range(_STEPS):
        x = np.where(legal, shares, 1.0)
        rest = 1.0 - shares.sum(axis=0)
        over = np.where(bound, (rates * shares).sum(axis=0) - least, 1.0)
        left = np.append(limits.capacity - (devices * shares).sum(axis=1), (value * shares).sum() - worth)
        whole = np.where(binds, left, np.inf)
        uses, gain = devices / whole[:types, None], -value / whole[types]
        hessian = Hessian(np.where(legal, x**2, 0.0), 1 / rest, rates / over, uses, gain)
        gradient = np.where(legal, hessian.sums - 1.0 / x, 0.0) - hessian.needs + uses + gain
        step = -hessian.solve(gradient)
        decrement = float(-(gradient * step).sum())
        if not decrement > _CLOSE:
            break
        slacks = np.concatenate([x[legal], rest, over, left[binds]])
        shared = np.append(-(devices * step).sum(axis=1), (value * step).sum())
        change = np.concatenate([step[legal], -step.sum(axis=0), (rates * step).sum(axis=0), shared[binds]])
        shares = shares + _length(slacks, change) * step
    return np.ascontiguousarray(shares.T)


@dataclass(frozen=True, slots=True)
class Hessian:
    """Hessian of the logarithms of all slacks, inverted by Woodbury's identity twice.

    It is a block per job, diagonal but for two outer products, plus a few outer products that join all jobs: one for the
    capacity of each type, and one for the value.

    Attributes:
        inverse: inverse of the diagonal; 0 where a job may not run; shape (types, jobs).
        sums: gradient of each job's remaining time; shape (jobs,). ``needs``: of its needs; shape (types, jobs).
        uses: gradient of the capacity of the type; shape (types, jobs). ``gain``: of the value; shape (types, jobs).
    """

    inverse: Array
    sums: Array
    needs: Array
    uses: Array
    gain: Array

    def solve(self, gradient: Array) -> Array:
        """Return the Newton step; shape (types, jobs)."""
        inverse, uses, gain = self.inverse, self.uses, self.gain
        by_sums, by_needs = inverse * self.sums, inverse * self.needs
        first, second = 1 + by_sums.sum(axis=0) * self.sums, 1 + (by_needs * self.needs).sum(axis=0)
        both = by_needs.sum(axis=0) * self.sums
        scale = 1 / (first * second - both**2)

        def multiples(sums: Array, needs: Array) -> tuple[Array, Array]:
            """Return the multiples of both outer products of each block."""
            return (second * sums - both * needs) * scale, (first * needs - both * sums) * scale

        sums, needs = (np.vstack([part * uses, (part * gain).sum(axis=0)]) for part in (by_sums, by_needs))
        of_sums, of_needs = multiples(sums, needs)
        plain_sums, plain_needs = multiples((by_sums * gradient).sum(axis=0), (by_needs * gradient).sum(axis=0))
        plain = inverse * gradient - by_sums * plain_sums - by_needs * plain_needs
        weighted = inverse * uses
        inner = np.diag(1 + np.append((weighted * uses).sum(axis=1), (inverse * gain**2).sum()))
        cross = (weighted * gain).sum(axis=1)
        inner[-1, :-1] += cross
        inner[:-1, -1] += cross
        inner -= sums @ of_sums.T + needs @ of_needs.T
        shared = np.linalg.solve(inner, np.append((uses * plain).sum(axis=1), (gain * plain).sum()))
        along = weighted * shared[:-1, None] + inverse * gain * shared[-1]
        return np.asarray(plain - along + by_sums * (shared @ of_sums) + by_needs * (shared @ of_needs))


def _length(slacks: Array, change: Array) -> float:
    """Return a step length at which all slacks stay positive and the sum of their logarithms grows."""
    ratio = change / slacks
    length = min(1.0, 0.95 / max(float(-ratio.min()), 1e-300))
    while length > 1e-6 and np.log1p(length * ratio).sum() <= 0:
        length /= 2
    return length
