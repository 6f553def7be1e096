"""Policy of conservative backfill: every waiting job has a reservation, and no later job delays it.

Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, section 2. Reservations are made again at every decision, in order of priority and
arrival, so that jobs move forward when others end early.
"""

from __future__ import annotations

from paceline.scheduling.policies.backfill.plan import BackfillPlan, by_priority
from paceline.scheduling.state import Decision, State


def conservative(state: State) -> Decision:
    """Start jobs by priority and arrival where that delays no earlier one by the expected lengths."""
    plan, order = BackfillPlan(state), by_priority(state).tolist()
    for index in order:
        if not plan.start(index):
            plan.reserve(index)
    return plan.decision(order)
