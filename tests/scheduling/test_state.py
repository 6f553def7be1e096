"""What a policy reads from a state."""

from __future__ import annotations

import numpy as np

from paceline.scheduling.state import Decision
from scheduling_toys import rigid, state


def test_ages_and_seconds_run() -> None:
    jobs = [rigid("a", 10, arrival_s=5), rigid("b", 10, arrival_s=20)]
    moment = state(jobs, time_s=30.0, run_s=np.array([[1.5], [0.0]]))
    assert moment.age_s.tolist() == [25.0, 10.0] and moment.ran_s.tolist() == [1.5, 0.0]


def test_a_decision_says_only_what_it_must() -> None:
    decision = Decision(devices=np.array([1]), type_index=np.array([0]))
    assert decision.order is None and decision.wake_s == np.inf and not decision.reasons and not decision.removed
