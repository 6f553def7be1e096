"""``scheduling.traces.gavel``: Gavel's jobs and throughputs, and two of its published figures."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.gavel import TEMPLATES, continuous_jobs, read_throughputs
from paceline.scheduling.traces.reader import read_trace

ROOT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("PACELINE_SHARED", ROOT.parent / "shared")) / "data"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason=f"Gavel's published data are not at {SHARED}")
TABLE = {
    f"{model} (batch size {batch})" if batch else model: {"V100": dict.fromkeys((1, 2, 4, 8), 2.0)}
    for model, batches, _ in TEMPLATES
    for batch in (batches or (0,))
}
JOBS = "trace,job_id,submit_time_s,duration_s,num_gpus,model,total_steps\na,0,5,60,2,A3C,100\nb,0,0,60,1,A3C,{steps}\n"


def test_a_trace_of_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS.format(steps=7))
    (job,) = read_trace(path, {"trace": "a"}).jobs
    assert (job.name, job.arrival_s, job.devices, job.model, job.steps, job.adapts) == ("0", 5.0, 2, "A3C", 100.0, frozenset())
    with pytest.raises(UserError, match="holds 2 traces by trace"):
        read_trace(path)


def test_a_wrong_cell_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS.format(steps="many"))
    with pytest.raises(UserError, match=r"row 2 \(line 3\), column total_steps: 'many' is not"):
        read_trace(path, {"trace": "b"})


def test_only_packed_rows_of_the_source_are_read(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.csv"
    head = "source,gpu_type,model,num_gpus,steps_per_s\n"
    path.write_text(head + "s,k80,A3C,1,2.5\ns,k80_unconsolidated,A3C,2,9\nother,v100,A3C,1,9\n")
    assert read_throughputs(path, "s") == {"A3C": {"K80": {1: 2.5}}}
    with pytest.raises(UserError, match="unknown source 'gavel'"):
        read_throughputs(path, "gavel")


def test_generated_jobs_are_the_same_for_the_same_seed_and_have_the_stated_law() -> None:
    jobs = list(itertools.islice(continuous_jobs(TABLE, 4.0), 3000))
    assert jobs[:50] == list(itertools.islice(continuous_jobs(TABLE, 4.0), 50))
    assert jobs[:5] != list(itertools.islice(continuous_jobs(TABLE, 4.0, seed=1), 5))
    assert jobs[0].arrival_s == 0.0
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(900, rel=0.06)
    assert sum(job.duration_s > 60e3 for job in jobs) / len(jobs) == pytest.approx(0.2, abs=0.02)
    assert all(job.steps == pytest.approx(2 * job.duration_s) and job.devices == 1 for job in jobs)


def test_several_devices_go_only_to_models_that_spread() -> None:
    jobs = list(itertools.islice(continuous_jobs(TABLE, 4.0, several=True), 2000))
    large = [job for job in jobs if job.devices > 1]
    assert len(large) / len(jobs) == pytest.approx(0.3, abs=0.03)
    assert {job.devices for job in large} == {2, 4, 8}
    assert not {"A3C", "CycleGAN"} & {job.model for job in large}


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(UserError, match="jobs an hour"):
        next(continuous_jobs(TABLE, rate))


@needs_data
def test_the_published_mean_of_the_static_trace_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """96 jobs on 48 devices of three types under its heterogeneity-aware fairness; the other rows are a benchmark's."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import schedule_gavel

    row = schedule_gavel.static(SHARED, "max_min_fairness_perf")
    sys.modules.pop("schedule_gavel")
    assert abs(float(str(row["jct_error_percent"]))) < 5
    assert abs(float(str(row["makespan_error_percent"]))) < 5
