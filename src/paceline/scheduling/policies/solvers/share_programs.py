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
    """Maximize the sum of the logarithms of all slacks by Newton's method. Every iterate is legal, so it may stop anywhere.

    The Hessian is a block per job and a few dense rows (the capacities and the total), inverted by Woodbury's identity.
    """
    jobs, types = shares.shape
    legal, bound = limits.legal, least > 0
    dense = np.zeros((jobs, types, types + (total is not None)))
    dense[:, np.arange(types), np.arange(types)] = limits.devices[:, None] * legal
    if total is not None:
        dense[:, :, types] = -total[0] * legal
    room = np.concatenate([limits.capacity.astype(float), [] if total is None else [-total[1]]])
    rates = np.where(legal & bound[:, None], rates, 0.0)
    used = limits.capacity > 0
    rows = np.concatenate([used, np.ones(int(total is not None), bool)])
    dense, room = dense[:, :, rows], room[rows]
    for _ in range(_STEPS):
        x = np.where(legal, shares, 1.0)
        rest = 1.0 - shares.sum(axis=1)
        over = np.where(bound, (rates * shares).sum(axis=1) - least, 1.0)
        left = room - np.einsum("jtr,jt->r", dense, shares)
        gradient = np.where(legal, -1.0 / x + 1.0 / rest[:, None] - rates / over[:, None], 0.0) + dense @ (1.0 / left)
        both = legal[:, :, None] & legal[:, None, :]
        block = np.where(both, 1.0 / rest[:, None, None] ** 2 + _outer(rates / over[:, None]), 0.0)
        block[:, np.arange(types), np.arange(types)] += 1.0 / x**2
        scaled = dense / left
        solved = np.linalg.solve(block, np.concatenate([gradient[:, :, None], scaled], axis=2))
        plain, along = solved[:, :, 0], solved[:, :, 1:]
        inner = np.eye(len(left)) + np.einsum("jtr,jts->rs", scaled, along)
        step = -np.where(legal, plain - along @ np.linalg.solve(inner, np.einsum("jtr,jt->r", scaled, plain)), 0.0)
        decrement = float(-(gradient * step).sum())
        if not decrement > _CLOSE:
            break
        slacks = np.concatenate([x[legal], rest, over, left])
        change = np.concatenate(
            [step[legal], -step.sum(axis=1), (rates * step).sum(axis=1), -np.einsum("jtr,jt->r", dense, step)]
        )
        shares = shares + _length(slacks, change) * step
    return shares


def _outer(rows: Array) -> Array:
    return np.asarray(rows[:, :, None] * rows[:, None, :])


def _length(slacks: Array, change: Array) -> float:
    """Return a step length at which all slacks stay positive and the sum of their logarithms grows."""
    ratio = change / slacks
    length = min(1.0, 0.95 / max(float(-ratio.min()), 1e-300))
    while length > 1e-6 and np.log1p(length * ratio).sum() <= 0:
        length /= 2
    return length
