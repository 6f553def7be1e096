"""Slurm's two lists are told apart by their headers, whatever columns were asked for."""

from __future__ import annotations

import pytest

from paceline.scheduling.traces.content import JobFile
from paceline.scheduling.traces.forms import FORMS, is_squeue


@pytest.mark.parametrize(
    ("header", "squeue"),
    [
        ("JobID JobName Partition Account AllocCPUS State ExitCode", False),
        ("JobIDRaw Start End State", False),
        ("JobID Submit Start State AllocTRES", False),
        ("JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)", True),
        ("JOBID PARTITION NAME USER STATE TIME TIME_LIMIT NODES", True),
        ("JOBID NAME USER STATE", True),
        ("JOBID START_TIME STATE TRES_ALLOC", True),
    ],
)
def test_sacct_and_squeue_are_told_apart(header: str, squeue: bool) -> None:
    assert is_squeue(header.split()) == squeue
    source = JobFile.of(header.replace(" ", "|") + "\n", "f")
    assert [form.name for form in FORMS if form.matches(source)] == ["squeue" if squeue else "sacct"]
