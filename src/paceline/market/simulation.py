"""A federation's jobs on its devices, event by event: each job starts where it ends first, and what does not fit waits."""

from __future__ import annotations

import numpy as np

from paceline.market import reference_simulation
from paceline.market.federation_state import Demand, Outcome, Rules

try:
    from paceline import _native
except ImportError:  # a source tree without a build
    _native = None  # type: ignore[assignment]


def simulate(demand: Demand, rules: Rules, members: int, native: bool | None = None) -> Outcome:
    """Run the jobs of a coalition on its devices.

    Jobs are served first come first served with greedy backfill: one that does not fit holds up nobody. ``rules`` say who is
    served first, what may be lent, and who has to leave.

    Args:
        members: the coalition's mask. Other sites' jobs do not run, and their devices are away.
        native: C++ (True) or Python (False), which give the same; None: C++ where it was built.
    """
    if native is None:
        native = _native is not None
    if not native:
        return reference_simulation.simulate(demand, rules, members)
    jobs = len(demand.arrival_s)
    first_start, end, restarts = np.empty(jobs), np.empty(jobs), np.empty(jobs, np.int64)
    runs = _native.federation(
        demand.arrival_s,
        demand.duration_s,
        demand.devices,
        demand.site,
        demand.kind,
        demand.patience_s,
        demand.kind_site,
        demand.speed,
        demand.believed,
        demand.delay_s,
        demand.cloud_speed,
        demand.capacity,
        demand.pool_site,
        rules.lends,
        rules.borrows,
        rules.notice_s,
        rules.by_credit,
        rules.home_first,
        rules.checkpoint_s,
        rules.save_s,
        rules.restart_s,
        members,
        first_start,
        end,
        restarts,
    )
    return Outcome(first_start, end, restarts, *runs)


__all__ = ["simulate"]
