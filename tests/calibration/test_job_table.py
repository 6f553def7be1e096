"""From what a file says and what the user adds to a row that corrects the next answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.calibration.imports.job_table import add_row, job_row, read_steps, table_text
from paceline.calibration.imports.step_times import MeasuredSteps
from paceline.calibration.records import observations
from paceline.errors import UserError

GIVEN = {
    "workload": "lenet5",
    "device": "A100",
    "devices_per_node": "8",
    "nodes": "1",
    "global_batch": "64",
    "precision": "fp32",
}


def steps(**more: Any) -> MeasuredSteps:
    return MeasuredSteps(**{"source": "a run", "step_s": (9.0, 2.0, 1.0, 3.0), **more})


def test_a_row_is_read_back_as_the_observation(tmp_path: Path) -> None:
    row, seen = job_row(steps(sync_s=0.5, processes=8, job={"precision": "fp32", "sharding": "zero2"}), GIVEN)
    assert (row["precision"], row["sharding"], row["#steps"]) == ("fp32", "zero2", "3")
    assert (row["step_s"], row["sync_s"], row["#low_s"], row["#high_s"]) == ("2", "0.5", "1.5", "2.5")
    place = tmp_path / "jobs.csv"
    assert add_row(place, row) == 1
    more, other = job_row(steps(), {**GIVEN, "grad_accum": "2"})
    assert add_row(place, more) == 2
    assert observations([place]) == [seen, other]
    assert place.read_text().splitlines()[0].startswith("workload,device,global_batch,step_s,")


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", "a100", "Some Accelerator"])
def test_a_device_has_several_names(name: str) -> None:
    assert job_row(steps(job={"device": name}), GIVEN)[0]["device"] == "A100"


def test_a_wait_is_no_longer_than_the_step() -> None:
    assert job_row(steps(sync_s=7.0), GIVEN)[1].sync_s == 2.0


@pytest.mark.parametrize(
    ("more", "given", "said"),
    [
        ({}, {}, "does not say workload, device, global batch and precision; give --workload, --cluster, --global-batch"),
        (
            {"job": {"device": "A100"}, "processes": 16},
            {"devices_per_node": ""},
            "of 16 processes does not say how many devices",
        ),
        (
            {"job": {"global_batch": "16"}, "places": {"global_batch": "line 3: batch 16"}},
            GIVEN,
            r"a run states global_batch 16 \(line 3: batch 16\), and 64 was given; leave it out to take the file's",
        ),
        ({"job": {"precision": "bf16"}}, GIVEN, "states precision bf16, and fp32 was given"),
        (
            {"job": {"device": "NVIDIA H100 80GB HBM3"}},
            GIVEN,
            "states device NVIDIA H100 80GB HBM3, and A100 was given; give the",
        ),
        ({"job": {"device": "NVIDIA A100-SXM4-40GB"}}, GIVEN, "states device NVIDIA A100-SXM4-40GB, and A100 was given"),
        ({"job": {"device": "Z9000 Pro"}}, GIVEN, "states device Z9000 Pro, and A100 was given"),
        ({"processes": 16}, GIVEN, "a run is of 16 processes, the cluster has 8 devices"),
        ({}, {**GIVEN, "colour": "red"}, "unknown column of a job 'colour'"),
        ({}, {**GIVEN, "step_s": "1"}, "unknown column of a job 'step_s'"),
        ({}, {**GIVEN, "global_batch": "63"}, "global batch 63 does not divide"),
        ({}, {**GIVEN, "workload": "lenet6"}, "unknown workload 'lenet6'"),
    ],
)
def test_a_job_that_is_not_whole_is_refused(more: dict[str, Any], given: dict[str, str], said: str) -> None:
    usual = {**GIVEN, **given} if "devices_per_node" in given else given
    with pytest.raises(UserError, match=said):
        job_row(steps(**more), usual)


def test_a_table_that_is_none_is_not_written_to(tmp_path: Path) -> None:
    place = tmp_path / "other.csv"
    place.write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="lacks the columns workload, step_s"):
        add_row(place, job_row(steps(), GIVEN)[0])
    assert place.read_text() == "a,b\n1,2\n"
    with pytest.raises(UserError, match="cannot write"):
        add_row(tmp_path / "none" / "jobs.csv", job_row(steps(), GIVEN)[0])


def test_a_table_has_the_columns_of_all_its_rows() -> None:
    assert table_text([{"step_s": "1", "#a": "x"}, {"workload": "w", "#b": "y"}]) == "workload,step_s,#a,#b\n,1,x,\nw,,,y\n"


def test_the_kind_of_a_file_is_seen(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 5e6}
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "rank0.json").write_text(json.dumps({"traceEvents": [event]}))
    table, log = tmp_path / "a.csv", tmp_path / "a.log"
    table.write_text("step_time_s\n2\n")
    log.write_text("elapsed time per iteration (ms): 4000.0 |\n")
    seconds = [list(read_steps([path]).step_s) for path in (traces, table, log)]
    assert seconds == [[5.0], [2.0], [4.0]]
    for paths, columns, said in (
        ([traces, table], {}, "2 files of different kinds"),
        ([table, log], {}, "2 files that are no traces"),
        ([log], {"step": "a"}, "a.log has no columns"),
        ([tmp_path / "none.log"], {}, "is no file"),
        ([tmp_path], {}, "has no trace"),
    ):
        with pytest.raises(UserError, match=said):
            read_steps(paths, columns=columns)
