"""Policy of shortest remaining time over device types, with priority for jobs that determine the makespan. Jobs are rigid.

Both parts are known; their combination is ours. A linear program over time shares (as Gavel, OSDI 2020, section 4) uses the
weights of shortest remaining time first. List scheduling contributes the critical jobs.
"""

from __future__ import annotations

import numpy as np

from paceline.array_types import Array, Bools
from paceline.scheduling.policies.solvers.share_programs import highest_level, most_value
from paceline.scheduling.policies.solvers.time_shares import ShareDemand
from paceline.scheduling.state import Decision, State

CRITICAL = 0.7
"""Least ratio of a job's remaining time on its fastest type to the shortest makespan at which it is critical."""
_FIRST = 1e3
"""Weight of critical jobs relative to the others."""


def critical_first(state: State, critical: float = CRITICAL) -> Decision:
    """Give each type to the jobs that gain most by it: relative speed over the shortest remaining time.

    If starts cost time, a critical job stays critical while it runs. Otherwise jobs near the limit stop each other in turn.

    Args:
        critical: as ``CRITICAL``. Above 1 no job is critical, and only the mean completion time counts.

    Raises:
        UserError: unknown remaining work of a job.
    """
    jobs = len(state.jobs)
    devices, kinds = np.zeros(jobs, np.int64), np.full(jobs, -1)
    demand = ShareDemand.of(state)
    if not len(demand.rows):
        return Decision(devices=devices, type_index=kinds)
    best = demand.speed.max(axis=1)
    values = demand.speed / best[:, None] / np.maximum(demand.left / best, 1e-9)[:, None]
    decides = _decides(demand, critical)
    known = frozenset[str](state.memory or ())
    names = demand.names
    stays = (state.devices[demand.rows] > 0) & (state.restart_s[demand.rows] > 0)
    decides |= stays & np.array([name in known for name in names], bool)
    values = np.where(decides[:, None], values * _FIRST, values)
    shares = most_value(demand.limits, values)
    if shares is None:
        raise RuntimeError("shares of 0 are legal, but none were found")
    left, reasons = state.capacity.tolist(), {}
    for job, kind in _queue(shares, values / demand.devices[:, None]):
        row, asked = int(demand.rows[job]), int(demand.devices[job])
        if devices[row] or asked > left[kind] or not demand.speed[job, kind] > 0:
            continue
        devices[row], kinds[row] = asked, kind
        left[kind] -= asked
        if decides[job]:
            reasons[row] = "it decides the makespan"
    order = np.argsort(-devices, kind="stable").tolist()
    memory = tuple(name for name, first in zip(names, decides.tolist(), strict=True) if first)
    return Decision(devices=devices, type_index=kinds, order=order, reasons=reasons, memory=memory)


def _decides(demand: ShareDemand, critical: float) -> Bools:
    """Return a mask of the jobs whose wait would extend the shortest makespan of all present jobs."""
    if critical > 1:
        return np.zeros(len(demand.rows), bool)
    left = np.maximum(demand.left, 1e-9)
    return np.asarray(left / demand.speed.max(axis=1) >= critical * shortest_makespan_s(demand, left))


def shortest_makespan_s(demand: ShareDemand, left: Array) -> float:
    """Return the shortest makespan in seconds of time shares.

    If all other jobs fit next to the longest one on their fastest types, it is the time of that job.
    Otherwise it comes from a linear program.

    Args:
        left: remaining progress of each job, above 0.
    """
    alone_s, fastest = left / demand.speed.max(axis=1), demand.speed.argmax(axis=1)
    longest_s, capacity = float(alone_s.max()), demand.state.capacity
    if (np.bincount(fastest, demand.devices * alone_s / longest_s, len(capacity)) <= capacity).all():
        return longest_s
    return 1 / highest_level(demand.limits, demand.speed / left[:, None])[0]


def _queue(shares: Array, values: Array) -> list[tuple[int, int]]:
    """Return (job, type) pairs by descending share, then unclaimed pairs by value per device."""
    types = shares.shape[1]
    claimed = np.where(shares > 1e-9, np.round(shares, 6), 0.0).ravel()
    order = np.lexsort((-values.ravel(), -claimed))
    return [(int(at) // types, int(at) % types) for at in order]
