"""The most progress per dollar."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_states import Known, state
from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup
from paceline.scheduling.job import Job
from paceline.scheduling.policies.most_progress import cost
from paceline.scheduling.state import State

RIGID = Job(name="rigid", steps=1)


def job(left: float, *speeds: float) -> Known:
    return Known(lambda kind, devices: speeds[kind] * np.ones_like(devices), left=left)


def priced(outlooks: list[Known], jobs: Job | list[Job] = RIGID) -> State:
    """A T4 of 1 dollar and an A100 of 10."""
    fleet = Fleet((NodeGroup.of("T4", 1, 1, price=1.0), NodeGroup.of("A100", 1, 1, price=10.0)))
    return replace(state("1x1xT4 + 1x1xA100", outlooks, jobs), fleet=fleet)


def test_a_job_runs_where_a_step_is_cheapest() -> None:
    assert cost(priced([job(100, 1.0, 4.0)])).type_index.tolist() == [0]
    assert cost(priced([job(100, 1.0, 40.0)])).type_index.tolist() == [1]


def test_a_deadline_that_only_the_dear_type_meets_is_met() -> None:
    late = [replace(RIGID, name="late", deadline_s=3600.0 + 300.0)]
    assert cost(priced([job(1000, 1.0, 4.0)], late)).type_index.tolist() == [1]


def test_deadlines_that_cannot_be_met_together_are_no_error() -> None:
    """Each needs most of the A100; one is given up."""
    jobs = [replace(RIGID, name=str(n), deadline_s=3600.0 + 300.0) for n in range(2)]
    shares = cost(priced([job(1000, 1.0, 4.0)] * 2, jobs)).memory.shares
    assert sorted(shares[:, 1] > 0.5) == [False, True]


def test_a_type_without_a_price_is_refused() -> None:
    with pytest.raises(UserError, match="the price of T4 is unknown"):
        cost(state("1x1xT4", [job(1, 1.0)], RIGID))
