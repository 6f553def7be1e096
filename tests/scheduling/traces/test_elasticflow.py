"""ElasticFlow's traces and throughputs are read, and a damaged row is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.elasticflow import read_jobs, read_speeds, speeds_of

JOBS = """job_id,submit_time_s,duration_s,num_gpus,cluster,model,batch_size,total_steps,deadline_s
0,1000,50,2,c,bert,64,300,1100
1,1010,60,1,c,bert,128,400,
"""
SPEEDS = """gpu_type,model,global_batch_size,1,2,4
A100,bert,64,6.0,8.5,
A100,bert,128,3.5,5.5,nan
T4,bert,64,1.0,,
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "file.csv"
    path.write_text(text)
    return path


def test_jobs_count_from_the_first_arrival(tmp_path: Path) -> None:
    first, second = read_jobs(written(tmp_path, JOBS))
    assert (first.name, first.arrival_s, first.devices, first.batch, first.steps) == ("0", 0, 2, 64, 300)
    assert (first.deadline_s, second.deadline_s, second.arrival_s) == (100, math.inf, 10)
    assert first.adapts == {"devices"} and second.model == "bert"


def test_speeds_are_of_what_was_measured(tmp_path: Path) -> None:
    tables = read_speeds(written(tmp_path, SPEEDS))
    a100 = "A100 SXM 40GB"
    assert tables == {(a100, "bert", 64): {1: 6, 2: 8.5}, (a100, "bert", 128): {1: 3.5, 2: 5.5}, ("T4", "bert", 64): {1: 1}}
    jobs = read_jobs(written(tmp_path, JOBS))
    assert speeds_of(jobs[0], tables, a100)[2] == 8.5
    with pytest.raises(UserError, match="job '1': bert of batch 128 was not measured on T4"):
        speeds_of(jobs[1], tables, "T4")


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
        read_jobs(written(tmp_path, JOBS.replace(before, after)))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("8.5", "fast", "row 1 (line 2), column 2: 'fast'"),
        ("bert,128", "bert,", "row 2 (line 3), column global_batch_size"),
        ("64,1.0", "64,", "row 3 (line 4): it has no speed"),
        ("1,2,4", "one,two,four", "no column for a number of devices"),
    ],
)
def test_a_damaged_speed_is_named(tmp_path: Path, before: str, after: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        read_speeds(written(tmp_path, SPEEDS.replace(before, after)))
    assert says in str(caught.value)
