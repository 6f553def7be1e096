"""Jobs that no longer learn are stopped; those that do are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.array_types import Array
from paceline.errors import UserError
from paceline.scheduling.job import Job
from paceline.scheduling.policies.serving_order import fifo
from paceline.scheduling.policies.wrappers.early_stop import EarlyStop, learned_enough, stopping_early
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from scheduling_toys import FREE, SMALL, elastic, rigid, state

LEARNS = np.log(np.arange(1, 40))  # a negative loss
FLAT = np.concatenate([1 - 1 / np.arange(1, 11), np.full(6, 0.9)])  # an accuracy


@given(st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_the_rule_knows_no_units(scale: float, shift: float) -> None:
    assert learned_enough(scale * FLAT + shift) and not learned_enough(scale * LEARNS[:20] + shift)
    assert learned_enough(-scale * LEARNS[:20] + shift), "it only gets worse"


def test_a_loss_that_diverges_is_no_learning() -> None:
    loss = np.concatenate([1 / np.arange(1, 8), np.linspace(1, 50, 8)])
    assert learned_enough(-loss) and not learned_enough(-loss[:7], patience=3)
    for gone in (np.nan, np.inf):
        assert learned_enough(-np.concatenate([loss[:7], np.full(5, gone)]))
    assert not learned_enough(np.full(10, np.nan)) and not learned_enough(np.concatenate([np.full(5, np.nan), LEARNS[:5]]))


def test_it_waits_for_enough_reports() -> None:
    assert not learned_enough(np.full(9, 0.5), patience=5) and learned_enough(np.full(10, 0.5), patience=5)
    assert not learned_enough(np.array([]))
    assert learned_enough(np.array([0.1, np.nan] * 10)) and not learned_enough(np.array([*LEARNS[:9], np.nan]))


class Learner(DurationRun):
    """An epoch each ten seconds, and a curve."""

    def __init__(self, job: Job, values: Array) -> None:
        super().__init__(job)
        self.to_next, self.epochs, self.values = 10.0, 0, values

    def cross(self) -> None:
        self.epochs += 1
        self.to_next, self.finished = 10.0, self.epochs == len(self.values)

    def curve(self) -> Array:
        return self.values[: self.epochs]


def test_a_job_that_stopped_learning_leaves_its_devices_to_the_next() -> None:
    jobs = [rigid("flat", 1, 8), rigid("learns", 1, 8)]
    curves = {"flat": np.concatenate([FLAT, np.full(50, 0.9)]), "learns": LEARNS}
    schedule = simulate(jobs, SMALL, stopping_early(fifo), lambda job: Learner(job, curves[job.name]), FREE)
    flat, learns = schedule.outcomes
    assert (
        flat.removed_s == 150
        and "its last 5 reports added less than 1 % of its earlier progress" in flat.removed
        and np.isnan(flat.end_s)
    )
    assert learns.end_s == pytest.approx(150 + 390) and not learns.removed


def test_what_a_policy_promised_ends_with_the_job_that_is_removed() -> None:
    jobs = [rigid("runs", 1, 4), rigid("flat", 1, 4), rigid("learns", 1, 4)]
    curves = {"runs": LEARNS, "flat": np.concatenate([FLAT, np.full(500, 0.9)]), "learns": LEARNS}
    settings = ClusterSettings(round_s=1.0, restart_s=0.0)
    schedule = simulate(jobs, SMALL, stopping_early(fifo), lambda job: Learner(job, curves[job.name]), settings)
    assert [outcome.removed_s for outcome in schedule.outcomes] == [None, 150, None] and schedule.outcomes[2].start_s == 151


def test_a_rule_is_written_and_said() -> None:
    assert EarlyStop.named("5") == EarlyStop(5, 0.01) and EarlyStop.named(" 3 : 2.5% ") == EarlyStop(3, 0.025)
    assert EarlyStop.named("3:.1") == EarlyStop(3, 0.1)
    assert str(EarlyStop(3, 0.025)) == "its last 3 reports added less than 2.5 % of its earlier progress"
    for text in ("", "0", "x", "5:", "5:100%", "5:2", "-3", "5:1%%"):
        with pytest.raises(UserError, match="write REPORTS or REPORTS:SHARE, such as 5 or 5:1%"):
            EarlyStop.named(text)


def test_jobs_without_curves_are_left_alone() -> None:
    moment = state([elastic("a", 10)], curves=())
    assert stopping_early(fifo)(moment).devices.tolist() == [1] and not stopping_early(fifo)(moment).removed
