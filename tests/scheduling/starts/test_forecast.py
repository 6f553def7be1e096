"""Forecasts: certain lengths give certain starts, the general simulator agrees, ranges hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.registry import POLICIES
from paceline.scheduling.queues.slurm_settings import SlurmSettings
from paceline.scheduling.simulate.run import DurationRun
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate
from paceline.scheduling.starts.forecast import Forecaster, ForecastOptions, _affordable
from paceline.scheduling.starts.lengths import LengthModel
from paceline.scheduling.starts.live_source import read_waiting_queue
from queues import ended, nodes, queue, runs, waits

LIMITS = ForecastOptions(futures=2, arrivals=False, lengths="limits")


@pytest.mark.parametrize("policy", ["conservative", "slurm"])
def test_with_certain_lengths_the_starts_are_those_of_the_simulator(policy: str) -> None:
    rng = np.random.default_rng(5)
    jobs = [
        waits(f"j{at}", int(rng.choice([1, 2, 4, 8, 16])), float(rng.integers(1, 20) * 600), 100.0 - at) for at in range(40)
    ]
    found = Forecaster(queue(*jobs, on=nodes(8, 4)), LIMITS).forecast()
    same = [Job(name=job.name, devices=job.devices, duration_s=job.limit_s, limit_s=job.limit_s) for job in jobs]
    settings = ClusterSettings(round_s=0, restart_s=0)
    simulated = simulate(same, Fleet.named("4x8xA100"), POLICIES[policy].decide, lambda job: DurationRun(job, True), settings)
    expected = {outcome.job.name: outcome.start_s for outcome in simulated.outcomes}
    assert {each.job.name: round(each.start()) for each in found.jobs} == {
        name: round(start) for name, start in expected.items()
    }


def test_a_longer_time_so_far_and_known_owners_move_the_start() -> None:
    past = [ended(f"a{at}", 8, 3600.0 + at, user="ann", limit_s=36000.0, ago_s=7200.0 + 900 * at) for at in range(40)]
    running = runs("r", 8, 3000.0, 36000.0, user="ann")
    found = replace(queue(running, waits("w", 8, 36000.0, user="ann")), history=tuple(past))
    one = Forecaster(found, ForecastOptions(arrivals=False)).forecast().jobs[0]
    assert one.start() == pytest.approx(620, abs=60) and one.start(0.1) <= one.start() <= one.start(0.9)
    assert one.end() == pytest.approx(620 + 3620, abs=200) and one.source == "its owner's runs of this kind"
    limits = Forecaster(found, LIMITS).forecast().jobs[0]
    assert limits.start() == 33000.0


def test_kueue_starts_what_fits_and_slurm_keeps_devices_for_the_first() -> None:
    jobs = (runs("r", 6, 10.0, 7200.0), waits("big", 8, 3600.0, 90.0), waits("small", 2, 36000.0, 50.0))
    starts = {
        form: [each.start() for each in Forecaster(queue(*jobs, form=form), LIMITS).forecast().jobs]
        for form in ("squeue", "kueue")
    }
    assert starts["squeue"] == [7190.0, 7190.0 + 3600.0]
    assert starts["kueue"] == [36000.0, 0.0]


def test_what_jobs_of_a_day_share_widens_the_range_of_those_far_behind() -> None:
    rng = np.random.default_rng(1)
    day = rng.normal(size=30)
    past = []
    for at in range(300):
        run_s = float(600 * np.exp(0.8 * day[at % 30] + 0.3 * rng.normal()))
        past.append(ended(f"a{at}", 8, run_s, user=f"u{at % 7}", ago_s=86400.0 * (at % 30) + 9999))
    base = queue(runs("r", 8, 1.0), *(waits(f"w{at}", 8, since_s=99.0 - at) for at in range(10)))
    there, model = replace(base, history=tuple(past)), LengthModel.of(past)
    options = ForecastOptions(arrivals=False)
    alone = replace(model, correlation_owner=0.0, correlation_period=0.0)
    widths = [Forecaster(there, options, each).forecast().jobs[-1] for each in (model, alone)]
    shared, apart = (each.start(0.9) / each.start(0.1) for each in widths)
    assert model.correlation_period > 0.3 and shared > 1.5 * apart


ROWS = "JOBID|STATE|SUBMIT_TIME|TIME|TIME_LIMIT|NODES|TRES_PER_NODE|PRIORITY|REASON\n"
THROTTLED = {
    "2_[1-4%2]|PENDING|2026-11-02T08:20:00|0:00|1:00:00|1|gres/gpu:1|9|Resources": [0.0, 0.0, 3600.0, 3600.0],
    "2_1|RUNNING|2026-11-02T08:20:00|30:00|1:00:00|1|gres/gpu:1|9|None\n"
    "2_[2-4%1]|PENDING|2026-11-02T08:20:00|0:00|1:00:00|1|gres/gpu:1|9|JobArrayTaskLimit": [1800.0, 5400.0, 9000.0],
    "2_1|RUNNING|2026-11-02T08:20:00|30:00|1:00:00|1|gres/gpu:1|9|None\n"
    "2_2|PENDING|2026-11-02T08:20:00|0:00|1:00:00|1|gres/gpu:1|9|JobArrayTaskLimit": [1800.0],
}


@pytest.mark.parametrize("rows", THROTTLED)
def test_tasks_of_an_array_keep_its_throttle_and_others_pass_them(rows: str) -> None:
    other = "\n3|PENDING|2026-11-02T08:50:00|0:00|1:00:00|1|gres/gpu:1|1|Priority\n"
    for settings in (None, SlurmSettings(multifactor=False)):
        given = {"cluster": "1x8xA100", "now_s": 1793610000.0, "queues": settings}
        found = read_waiting_queue("-", stdin=lambda: ROWS + rows + other, **given)
        assert [each.start() for each in Forecaster(found, LIMITS).forecast().jobs] == [*THROTTLED[rows], 0.0]


def test_fewer_futures_are_simulated_under_a_policy_if_many_jobs_come() -> None:
    many = [runs(f"r{at}", 1, 60.0 * at + 9, 7200.0) for at in range(70)]
    there = queue(*many, waits("w", 1, 3600.0), on=nodes(70), form="kueue")
    assert [Forecaster(there, ForecastOptions(arrivals=come)).options.futures for come in (False, True)] == [32, 32]
    assert [_affordable(jobs) for jobs in (10, 300, 400, 5000)] == [32, 32, 18, 8]
    assert Forecaster(there, ForecastOptions(futures=64)).options.futures == 64
