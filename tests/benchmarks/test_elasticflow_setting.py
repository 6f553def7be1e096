"""ElasticFlow's traces and throughputs are read, and a damaged row is named."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from elasticflow_setting import TabledRun, read_jobs, read_speeds, speeds_of

from paceline.errors import UserError
from paceline.scheduling.job import Job
from scheduling_toys import elastic

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


TABLED = {"T4": {1: 2.0, 2: 3.0, 4: 5.0}}


def test_nothing_is_assumed_between_the_sizes_measured() -> None:
    run = TabledRun(elastic("a", 30), ("T4",), TABLED)
    assert run.outlook.goodput(0, 5).tolist() == [0, 2, 3, 0, 5, 0] and run.max_devices() == 4
    assert run.seconds_left(0, 4).tolist() == [np.inf, 15, 10, np.inf, 6]
    assert run.goodput(0, 1).tolist() == [0, 2] and run.relative_spread() == 0
    run.place("T4", (1, 1))
    assert run.speed == 3
    run.goes_to(3.0)
    assert run.seconds_left(0, 1)[1] == 1.5


def test_limits_and_rigid_jobs_leave_fewer_sizes() -> None:
    assert TabledRun(elastic("a", 30, min_devices=2, max_devices=3), ("T4",), TABLED).goodput(0, 4).tolist() == [0, 0, 3, 0, 0]
    assert TabledRun(Job(name="a", steps=30, devices=4), ("T4",), TABLED).goodput(0, 4).tolist() == [0, 0, 0, 0, 5]


def test_what_was_not_measured_is_refused() -> None:
    for job in (Job(name="a", steps=30, devices=3), elastic("a", 30, device_types=("V100",)), Job(name="a", duration_s=3)):
        with pytest.raises(UserError, match="job 'a'"):
            TabledRun(job, ("T4",), TABLED)
