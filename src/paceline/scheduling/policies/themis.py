"""Policy Themis (NSDI 2020, sections 3 and 4): free devices are offered to the jobs that are worst off, for a lease.

Rho of a job is the ratio of its time in the shared cluster to its time on an equal part of it, running time included. The
authors' code is not public. Assumptions of this version: an app is one rigid job, every bid is true (no hidden payments), and
devices without a winner are handed out by rho. Other papers' figures of "Themis" come from Gavel's ``finish_time_fairness``.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.array_types import Array, Bools, Ints
from paceline.scheduling.policies.solvers.time_shares import ShareDemand
from paceline.scheduling.state import Decision, State

OFFERED = 0.2
"""1 - f: share of the jobs that may bid (f = 0.8, section 8.3)."""
LEASE_S = 1200.0
"""Seconds for which a winner keeps its devices (20 minutes, section 8.1)."""


def themis(state: State, offered: float = OFFERED, lease_s: float = LEASE_S) -> Decision:
    """Continue running leases, and give free devices to the best bids of the worst-off jobs, then by rho.

    A bid on devices of a type is the factor by which they lower a job's rho. The auction seeks the largest product of all
    factors. Here bids are taken greedily, by logarithm over the part of the type.

    Raises:
        UserError: unknown remaining work of a job.
    """
    demand = ShareDemand.of(state)
    if not len(demand.rows):
        return _answer(state, np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1), {})
    ends: dict[str, float] = state.memory or {}
    left = state.capacity.tolist()
    devices, kinds = np.zeros(len(state.jobs), np.int64), np.full(len(state.jobs), -1)
    lease: dict[str, float] = {}
    for row in np.flatnonzero(state.devices).tolist():
        end_s, kind = ends.get(state.jobs[row].name, -math.inf), int(state.type_index[row])
        if end_s > state.time_s and left[kind] >= state.devices[row]:
            lease[state.jobs[row].name] = end_s
            devices[row], kinds[row] = state.devices[row], kind
            left[kind] -= int(state.devices[row])
    rho = _rho(demand)
    free = devices[demand.rows] == 0
    bidders = _worst(rho, free, offered)
    for job, kind in _by_bid(demand, bidders) + _by_rho(demand, rho, free & ~bidders):
        row, asked = int(demand.rows[job]), int(demand.devices[job])
        if devices[row] == 0 and left[kind] >= asked:
            devices[row], kinds[row] = asked, kind
            left[kind] -= asked
            lease[state.jobs[row].name] = state.time_s + lease_s
    return _answer(state, devices, kinds, lease)


def _answer(state: State, devices: Ints, kinds: Ints, lease: dict[str, float]) -> Decision:
    order = np.argsort(-devices, kind="stable").tolist()
    wake_s = min((end_s for end_s in lease.values() if end_s > state.time_s), default=math.inf)
    return Decision(devices=devices, type_index=kinds, order=order, wake_s=wake_s, memory=lease)


def _rho(demand: ShareDemand) -> Array:
    """Return the finish-time fairness of each job if it ran from now on, on its fastest type."""
    fastest_s = demand.left / demand.speed.max(axis=1)
    crowd = np.maximum(len(demand.rows) * demand.devices / demand.state.capacity.sum(), 1.0)
    alone_s = (demand.state.ran_s[demand.rows] + fastest_s) * crowd
    return np.asarray((demand.age_s + fastest_s) / np.maximum(alone_s, 1e-9))


def _worst(rho: Array, free: Bools, offered: float) -> Bools:
    """Return a mask of the worst-off jobs without a lease."""
    rows = np.flatnonzero(free)
    chosen = np.zeros(len(rho), bool)
    chosen[rows[np.argsort(-rho[rows], kind="stable")[: math.ceil(offered * len(rho))]]] = True
    return chosen


def _by_bid(demand: ShareDemand, bidders: Bools) -> list[tuple[int, int]]:
    """Return (job, type) by the logarithm of the factor, relative to the part of the type.

    A job that waits another lease would lose that factor.
    """
    rows, kinds = np.nonzero((demand.speed > 0) & bidders[:, None])
    age_s, left_s = demand.age_s[rows], demand.left[rows] / demand.speed[rows, kinds]
    slowest_s = demand.left[rows] / np.where(demand.speed > 0, demand.speed, np.inf).min(axis=1)[rows]
    factor = (age_s + slowest_s + LEASE_S) / (age_s + left_s)
    bid = np.log(factor) * demand.state.capacity[kinds] / demand.devices[rows]
    order = np.argsort(-bid, kind="stable")
    return list(zip(rows[order].tolist(), kinds[order].tolist(), strict=True))


def _by_rho(demand: ShareDemand, rho: Array, jobs: Bools) -> list[tuple[int, int]]:
    """Return (job, type) by rho, the fastest type first."""
    rows = np.flatnonzero(jobs)
    rows = rows[np.argsort(-rho[rows], kind="stable")]
    return [(int(row), int(kind)) for row in rows for kind in np.argsort(-demand.speed[row]) if demand.speed[row, kind] > 0]
