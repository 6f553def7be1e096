"""A schedule that is written and read is the same schedule."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet, NodeGroup, Outage
from paceline.scheduling.job import Job
from paceline.scheduling.simulate.saved import from_json, to_json
from paceline.scheduling.simulate.schedule import ClusterSettings
from schedule_toys import JOBS, simulated


def test_what_is_read_is_what_was_written() -> None:
    fleet = Fleet(
        (NodeGroup.of("T4", 2, 2, price=1.0, watts=70.0), NodeGroup.of("K80", 1, 8, price=0.9, watts=150.0)),
        (Outage(0, 5, 60, True),),
    )
    odd = Job(name="d", arrival_s=30, duration_s=9, device_types=("T4",), deadline_s=90, owner="é", weight=2.5)
    settings = ClusterSettings(round_s=7.0, restart_s=0.0)
    both = {policy: simulated(*JOBS, odd, policy=policy, fleet=fleet, settings=settings) for policy in ("fifo", "las")}
    back = from_json(json.loads(json.dumps(to_json(both), allow_nan=False)))
    assert list(back) == ["fifo", "las"]
    for name, one in both.items():
        assert repr(back[name]) == repr(one), "NaN is not itself"
        assert back[name].metrics == one.metrics and back[name].schedule.fleet.outages == fleet.outages


def test_ratios_of_jobs_alone_are_kept() -> None:
    one = replace(simulated(), ratios={"a": 1.0, "b": 2.5, "c": 1.0})
    back = from_json(json.loads(json.dumps(to_json({"fifo": one}), allow_nan=False)))["fifo"]
    assert back.ratios == one.ratios and back.metrics.worst_fairness == 2.5


def test_jobs_that_never_ended_and_adapt() -> None:
    one = simulated()
    one.schedule.outcomes[0].end_s = math.nan
    one.schedule.outcomes[1].job = Job(name="b", duration_s=5, adapts=frozenset({"devices", "batch"}), deadline_s=math.inf)
    back = from_json(json.loads(json.dumps(to_json({"fifo": one}), allow_nan=False)))["fifo"]
    assert math.isnan(back.schedule.outcomes[0].end_s)
    assert back.schedule.outcomes[1].job == one.schedule.outcomes[1].job


def test_another_schema_is_refused() -> None:
    with pytest.raises(UserError, match="this release reads schema 1"):
        from_json({"schema": 99})
