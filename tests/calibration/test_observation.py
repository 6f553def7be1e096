"""A measured step: what a run says of it, and times that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

import samples
from observed_steps import WORKLOAD, setting
from paceline.errors import UserError
from paceline.prediction import Observation
from paceline.workload import Workload


def test_a_record_is_an_observation() -> None:
    _, machines, strategy = setting()
    record = replace(samples.record("dense"), strategy=strategy.to_json())  # type: ignore[attr-defined]
    observation = Observation.of_record(record, Workload.named(WORKLOAD), machines)  # type: ignore[arg-type]
    assert (observation.step_s, observation.sync_s) == (record.step_time_s, record.exposed_comm_s)
    assert observation.strategy == strategy


@pytest.mark.parametrize("times", [{"step_s": 0.0}, {"step_s": math.nan}, {"step_s": 1.0, "sync_s": 2.0}])
def test_impossible_times_are_refused(times: dict[str, float]) -> None:
    network, machines, strategy = setting()
    with pytest.raises(UserError):
        Observation(workload=network, cluster=machines, strategy=strategy, **times)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [{"step_s": 1e-9}, {"step_s": 2.0, "sync_s": 0.0}, {"step_s": 2.0, "sync_s": 2.0}])
def test_a_step_may_wait_all_of_its_time_or_none(times: dict[str, float]) -> None:
    network, machines, strategy = setting()
    observation = Observation(workload=network, cluster=machines, strategy=strategy, **times)  # type: ignore[arg-type]
    assert (observation.step_s, observation.sync_s) == (times["step_s"], times.get("sync_s"))


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({"step_s": -1.0}, "an observed step of -1.0 s; give seconds above 0"),
        ({"step_s": math.inf}, "an observed step of inf s"),
        ({"step_s": 1.0, "sync_s": -0.5}, "-0.5 s of waiting in a step of 1.0 s; give at most the step"),
        ({"step_s": 1.0, "sync_s": math.nan}, "nan s of waiting"),
    ],
)
def test_the_mistake_has_its_numbers(times: dict[str, float], words: str) -> None:
    network, machines, strategy = setting()
    with pytest.raises(UserError, match=words):
        Observation(workload=network, cluster=machines, strategy=strategy, **times)  # type: ignore[arg-type]
