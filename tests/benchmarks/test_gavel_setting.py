"""``gavel_setting``: Gavel's throughputs, generated jobs and speeds, and two of its published figures."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gavel_setting import TEMPLATES, ThroughputRun, continuous_jobs, read_throughputs

from paceline.errors import UserError
from paceline.scheduling.fleet import Fleet
from paceline.scheduling.job import Job
from paceline.scheduling.policies.max_min import max_min
from paceline.scheduling.simulate.schedule import ClusterSettings
from paceline.scheduling.simulate.simulator import simulate

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("PACELINE_SHARED", ROOT.parent / "shared")) / "data"
needs_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"needs Gavel's published data (PACELINE_SHARED names them) at {SHARED}"
)
GENERATED = {
    f"{model} (batch size {batch})" if batch else model: {"V100 SXM2 16GB": dict.fromkeys((1, 2, 4, 8), 2.0)}
    for model, batches, _ in TEMPLATES
    for batch in (batches or (0,))
}


def test_only_packed_rows_of_the_source_are_read(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.csv"
    head = "source,gpu_type,model,num_gpus,steps_per_s\n"
    path.write_text(head + "s,k80,A3C,1,2.5\ns,k80_unconsolidated,A3C,2,9\nother,v100,A3C,1,9\n")
    assert read_throughputs(path, "s") == {"A3C": {"K80": {1: 2.5}}}
    with pytest.raises(UserError, match="unknown source 'gavel'"):
        read_throughputs(path, "gavel")


def test_generated_jobs_are_the_same_for_the_same_seed_and_have_the_stated_law() -> None:
    jobs = list(itertools.islice(continuous_jobs(GENERATED, 4.0), 3000))
    assert jobs[:50] == list(itertools.islice(continuous_jobs(GENERATED, 4.0), 50))
    assert jobs[:5] != list(itertools.islice(continuous_jobs(GENERATED, 4.0, seed=1), 5))
    assert jobs[0].arrival_s == 0.0
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(900, rel=0.06)
    assert sum(job.duration_s > 60e3 for job in jobs) / len(jobs) == pytest.approx(0.2, abs=0.02)
    assert all(job.steps == pytest.approx(2 * job.duration_s) and job.devices == 1 for job in jobs)


def test_several_devices_go_only_to_models_that_spread() -> None:
    jobs = list(itertools.islice(continuous_jobs(GENERATED, 4.0, several=True), 2000))
    large = [job for job in jobs if job.devices > 1]
    assert len(large) / len(jobs) == pytest.approx(0.3, abs=0.03)
    assert {job.devices for job in large} == {2, 4, 8}
    assert {job.model.split()[0] for job in large} == {"ResNet-18", "ResNet-50", "Transformer", "LM"}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(UserError, match="jobs an hour"):
        next(continuous_jobs(GENERATED, rate))


@needs_data
def test_the_published_mean_of_the_static_trace_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """96 jobs on 48 devices of three types under its heterogeneity-aware fairness; the other rows are a benchmark's."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import schedule_gavel

    row = schedule_gavel.static(SHARED, "max_min_fairness_perf")
    sys.modules.pop("schedule_gavel")
    assert abs(float(str(row["jct_error_percent"]))) < 5
    assert abs(float(str(row["makespan_error_percent"]))) < 5


FLEET = Fleet.named("2x1xT4 + 2x1xV100")
V100 = FLEET.types[1]
SPEEDS = {"net": {"T4": {1: 1.0, 2: 1.5}, V100: {1: 4.0, 2: 6.0}}, "other": {"T4": {1: 2.0}}}


def test_its_speed_is_the_table_s() -> None:
    run = ThroughputRun(Job(name="a", model="net", devices=2, steps=600), SPEEDS, FLEET)
    run.place(V100, (1, 1))
    assert (run.speed, run.to_next, run.finished) == (6.0, 600.0, False)
    assert run.goodput(0, 3).tolist() == [0, 0, 1.5, 0]
    assert run.seconds_left(1, 2)[2] == 100.0
    run.place("", ())
    assert run.speed == 0.0


def test_a_job_alone_takes_steps_over_speed() -> None:
    jobs = [Job(name="a", model="net", steps=4000.0)]
    schedule = simulate(
        jobs, FLEET, max_min, lambda job: ThroughputRun(job, SPEEDS, FLEET), ClusterSettings(round_s=1e5, restart_s=0)
    )
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
        ThroughputRun(job, SPEEDS, FLEET)
