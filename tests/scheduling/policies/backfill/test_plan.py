"""Plans with reservations; whole schedules are in ``test_easy``."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.policies.backfill.plan import BackfillPlan, by_priority
from paceline.scheduling.policies.backfill.preemption import Preemption, fewest
from paceline.scheduling.state import Leaving
from scheduling_toys import rigid, state


def test_priorities_come_first_and_then_arrivals() -> None:
    jobs = [rigid(name, 1, priority=priority) for name, priority in (("a", 0), ("b", 5), ("c", 5), ("d", -1))]
    assert by_priority(state(jobs)).tolist() == [1, 2, 0, 3]


def test_devices_in_their_grace_come_free_at_its_end_and_no_other_job_is_preempted_for_them() -> None:
    jobs = [rigid("low", 1000, 4), rigid("high", 100, 4, priority=9)]
    leaving = Leaving(((1, 4),), 0, 60.0)
    given = state(jobs, devices=np.array([4, 0]), type_index=np.array([0, -1]), leaving=(leaving,), restart_s=np.array(0.0))
    plan = BackfillPlan(given)
    assert not plan.start(1) and not Preemption(plan, fewest).make_room(1, [0])
    assert plan.reserve(1) and plan.starts_s == {1: 60.0}


def test_a_reservation_is_kept_free() -> None:
    jobs = [rigid("runs", 50, 6), rigid("large", 10, 8), rigid("long", 60, 2), rigid("short", 50, 2)]
    plan = BackfillPlan(
        state(jobs, devices=np.array([6, 0, 0, 0]), type_index=np.array([0, -1, -1, -1]), restart_s=np.array(0.0))
    )
    assert not plan.start(1) and plan.reserve(1) and plan.starts_s[1] == 50
    assert not plan.start(2) and plan.start(3) and plan.earliest(2)[0] == 60
    assert plan.steady_until_s() == 50 and plan.decision([1, 2, 3]).devices.tolist() == [6, 0, 0, 2]
