"""Slurm's accounting as jobs: what ran counts, what did not is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.scheduling.traces.reader import read_trace

HEAD = "JobID|JobName|User|Account|Submit|Start|End|State|AllocTRES\n"
ROWS = (
    '7|say "hi"|ann|lab|2026-11-20T10:00:00|2026-11-20T10:05:00|2026-11-20T11:05:00|COMPLETED|cpu=8,gres/gpu=4',
    "7.batch|batch|||2026-11-20T10:05:00|2026-11-20T10:05:00|2026-11-20T11:05:00|COMPLETED|cpu=8,gres/gpu=4,node=1",
    "7.0|python|||2026-11-20T10:05:00|2026-11-20T10:05:00|2026-11-20T11:05:00|COMPLETED|cpu=8,gres/gpu=4,node=1",
    "8_1|a|bo|lab|2026-11-20T10:01:00|2026-11-20T10:01:00|2026-11-20T10:02:00|FAILED|cpu=1,gres/gpu:a100=1,gres/gpu:t4=1",
    "8_2|a|bo|lab|2026-11-20T10:01:00|2026-11-20T10:01:00|2026-11-20T10:01:30|CANCELLED by 1000|gres/gpu=1,gres/gpu:a100=1",
    "8_[3-9]|a|bo|lab|2026-11-20T10:01:00|Unknown|Unknown|PENDING|",
    "9|a|bo|lab|2026-11-20T10:01:00|2026-11-20T10:01:00|Unknown|RUNNING|gres/gpu=1",
    "10|a|bo|lab|2026-11-20T10:01:00|2026-11-20T10:01:00|2026-11-20T10:09:00|COMPLETED|cpu=64,node=2",
    "11|a|bo|lab|2026-11-20T10:01:00|None|2026-11-20T10:09:00|CANCELLED by 0|",
    "12|a|bo|lab|2026-11-20T10:01:00|2026-11-20T10:09:00|2026-11-20T10:09:00|FAILED|gres/gpu=1",
)


def test_what_ran_becomes_jobs_and_the_rest_is_said(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(HEAD + "\n".join(ROWS) + "\n")
    trace = read_trace(path)
    assert [(j.name, j.arrival_s, j.duration_s, j.devices, j.owner, j.virtual_cluster) for j in trace.jobs] == [
        ("7", 0, 3600, 4, "ann", "lab"),
        ("8_1", 60, 60, 2, "bo", "lab"),
        ("8_2", 60, 30, 1, "bo", "lab"),
    ]
    assert trace.notes == (
        "2 of 8 jobs left out: they never started.",
        "1 of 8 jobs left out: they had not ended.",
        "1 of 8 jobs left out: they held no GPU.",
        "1 of 8 jobs left out: they ran for 0 s.",
        "1 of 3 jobs held several types of device, and one type is used.",
        "2 of 3 jobs did not complete (1 FAILED, 1 CANCELLED); each counts with the time that it ran.",
    )


def test_nodes_count_as_devices_where_nothing_else_is_there(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|Submit|Start|End|State|AllocNodes\n"
        "7|2026-11-20T10:00:00|2026-11-20T10:00:00|2026-11-20T10:01:00|COMPLETED|3\n"
        "7|2026-11-20T10:00:00|2026-11-20T10:02:00|2026-11-20T10:03:00|COMPLETED|3\n"
    )
    trace = read_trace(path)
    assert [(job.name, job.devices) for job in trace.jobs] == [("7", 3), ("7, run 2", 3)]
    assert trace.notes == (
        "1 of 2 jobs were run again; each run counts as a job.",
        "Without AllocTRES a node counts as one device (AllocNodes).",
    )


@pytest.mark.parametrize(
    ("head", "row", "text"),
    [
        (
            "JobID|Submit|Start|End|State|AllocTRES",
            "7|soon|Unknown|Unknown|RUNNING|",
            "1 had a wrong time; jobs.txt, row 1 (line 2): submit: 'soon'",
        ),
        (
            "JobID|Submit|Start|End|State|AllocTRES",
            "7|2026-11-20T10:00:00|2026-11-20T10:00:00|2026-11-20T07:00:00|COMPLETED|gres/gpu=1",
            "1 ended before its start",
        ),
        ("JobID|Submit|Start|End|State|AllocTRES", "7|Unknown|Unknown|Unknown|CANCELLED|", "1 never started"),
        ("JobID|Submit|Start|End|State", "7|Unknown|Unknown|Unknown|PENDING", "lacks the column AllocTRES or AllocNodes"),
    ],
)
def test_mistakes(head: str, row: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(f"{head}\n{row}\n")
    with pytest.raises(UserError) as error:
        read_trace(path)
    assert text in str(error.value)
