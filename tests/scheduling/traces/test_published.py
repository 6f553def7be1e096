"""The published traces as jobs: whole files where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.scheduling.traces.reader import read_trace

SHARED = Path(os.environ.get("PACELINE_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the published traces are not at {SHARED}")


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
