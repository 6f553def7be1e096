"""The published traces as jobs: whole files where they are at hand."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.reader import read_trace

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "traces"
needs_traces = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"needs the published traces (PACELINE_SHARED names them) at {SHARED}"
)
GAVEL = "trace,job_id,submit_time_s,duration_s,num_gpus,model,total_steps\na,0,5,60,2,A3C,100\nb,0,0,60,1,A3C,{steps}\n"
ELASTICFLOW = """job_id,submit_time_s,duration_s,num_gpus,cluster,model,batch_size,total_steps,deadline_s
0,1000,50,2,c,bert,64,300,1100
1,1010,60,1,c,bert,128,400,
"""


@needs_traces
@pytest.mark.parametrize(
    ("file", "where", "jobs"),
    [
        ("pollux_workloads.csv", {"set": "1.0x", "workload": "1"}, 160),
        ("sia_workloads.csv", {"set": "newtrace"}, 960),
    ],
)
def test_published_traces_are_read(file: str, where: dict[str, str], jobs: int) -> None:
    trace = read_trace(SHARED / file, where)
    assert len(trace.jobs) == jobs and trace.notes == ()
    assert {job.model for job in trace.jobs} <= {"cifar10", "imagenet", "ncf", "bert", "yolov3", "deepspeech2"}


@needs_traces
def test_every_form_of_the_published_files_is_told() -> None:
    deadlines = read_trace(SHARED / "elasticflow_195job.csv").jobs
    assert len(deadlines) == 195 and all(job.deadline_s < 1e9 and job.adapts == {"devices"} for job in deadlines)
    assert len(read_trace(SHARED / "gavel_physical.csv", {"trace": "artifact_evaluation"}).jobs) == 15


def test_a_gavel_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(GAVEL.format(steps=7))
    (job,) = read_trace(path, {"trace": "a"}).jobs
    assert (job.name, job.arrival_s, job.devices, job.model, job.steps, job.adapts) == ("0", 5.0, 2, "A3C", 100.0, frozenset())
    with pytest.raises(UserError, match="holds 2 traces by trace"):
        read_trace(path)


def test_a_wrong_cell_of_gavel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(GAVEL.format(steps="many"))
    with pytest.raises(UserError, match=r"row 2 \(line 3\), column total_steps: 'many' is not"):
        read_trace(path, {"trace": "b"})


def written(folder: Path, text: str) -> Path:
    path = folder / "file.csv"
    path.write_text(text)
    return path


def test_elasticflow_jobs_count_from_the_first_arrival(tmp_path: Path) -> None:
    first, second = read_trace(written(tmp_path, ELASTICFLOW)).jobs
    assert (first.name, first.arrival_s, first.devices, first.batch, first.steps) == ("0", 0, 2, 64, 300)
    assert (first.deadline_s, second.deadline_s, second.arrival_s) == (100, math.inf, 10)
    assert first.adapts == {"devices"} and second.model == "bert"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("bert,64,300", "bert,64,0", "row 1 (line 2), column total_steps"),
        ("bert,64,300", "bert,64,3.5", "column total_steps: '3.5'"),
        ("1010,60,1", ",60,1", "row 2 (line 3), column submit_time_s"),
        ("1010,60,1", "1010,soon,1", "column duration_s: 'soon'"),
        ("50,2,c", "50,,c", "column num_gpus"),
        (",300,1100", ",300,900", "column deadline_s: '900'"),
    ],
)
def test_a_damaged_job_is_named(tmp_path: Path, before: str, after: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        read_trace(written(tmp_path, ELASTICFLOW.replace(before, after)))
    assert says in str(caught.value)
