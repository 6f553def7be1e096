"""``scheduling.throughput_run``: steps a second by type and number of devices."""

from __future__ import annotations

import pytest

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.max_min import max_min
from paceline.scheduling.simulate.schedule import Settings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.simulate.throughput_run import ThroughputRun

FLEET = Fleet.named("2x1xT4 + 2x1xV100")
V100 = FLEET.types[1]
TABLE = {"net": {"T4": {1: 1.0, 2: 1.5}, V100: {1: 4.0, 2: 6.0}}, "other": {"T4": {1: 2.0}}}


def test_its_speed_is_the_table_s() -> None:
    run = ThroughputRun(Job(name="a", model="net", devices=2, steps=600), TABLE, FLEET)
    run.place(V100, (1, 1))
    assert (run.speed, run.to_next, run.finished) == (6.0, 600.0, False)
    assert run.goodput(0, 3).tolist() == [0, 0, 1.5, 0]
    assert run.seconds_left(1, 2)[2] == 100.0
    run.place("", ())
    assert run.speed == 0.0


def test_a_job_alone_takes_steps_over_speed() -> None:
    jobs = [Job(name="a", model="net", steps=4000.0)]
    schedule = simulate(jobs, FLEET, max_min, lambda job: ThroughputRun(job, TABLE, FLEET), Settings(round_s=1e5, restart_s=0))
    assert schedule.outcomes[0].jct_s == pytest.approx(4000.0 if schedule.outcomes[0].spans[0].device == "T4" else 1000.0)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job(name="a", model="none", steps=1), "no throughput of 'none' on 1 device of"),
        (Job(name="a", model="other", devices=2, steps=1), "no throughput of 'other' on 2 devices"),
        (Job(name="a", model="net", duration_s=1), "no steps"),
    ],
)
def test_what_is_not_known_is_refused(job: Job, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ThroughputRun(job, TABLE, FLEET)
