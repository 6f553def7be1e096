"""Faults of messages and links."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

from fault_jobs import Job
from fault_lab_jobs import LabJob
from fault_ranks import LIMIT_S, TIMEOUT_S, WORDS
from fault_registry import fault


@fault("corrupted message", long=True)
def corrupted(job: Job) -> None:
    job.words = ["--model", "faulty_module:corrupt", "--compression", "int8", *WORDS]
    job.start()
    job.check(job.ranks[0].said("checksum"), "a damaged message is not noticed")
    job.happens()
    job.ends(1, 1)
    job.says("paceline: rank 0: a message of rank 1: ")  # its sender
    job.says("the checksum does not match")
    job.check("a message of rank 0" not in job.ranks[1].error, "the sound rank is blamed")
    job.keeps()


@fault("link cut", long=True, needs_lab=True)
def cut(job: Job) -> None:
    at_work = LabJob(job, TIMEOUT_S)
    with at_work.running() as cluster:
        saved = job.saved()
        cluster.cut(2)
        job.happens(TIMEOUT_S)
    lines = at_work.lines()
    job.outcome.line = next((line for line in lines if "rank 2 is lost" in line), "")
    job.check(bool(job.outcome.line), f"nobody names rank 2: {lines}")
    job.check(any("this rank's link is cut" in line or "rank 2 is lost" in line for line in lines), f"{lines}")
    job.keeps(saved)


@fault("link cut and restored", long=True, needs_lab=True)
def cut_and_restored(job: Job) -> None:
    at_work = LabJob(job, 25.0)
    with at_work.running() as cluster:
        cluster.cut(2)
        time.sleep(2)
        cluster.mend(2)
        job.happens()
        saved = job.saved()
        while job.saved() <= saved and time.monotonic() < job.fault_at + LIMIT_S:
            time.sleep(0.2)
        job.check(job.saved() > saved, "it does not go on")
        for pid in at_work.pids():
            os.kill(pid, signal.SIGTERM)
    job.check([result.code for result in at_work.results] == [143] * 3, f"{[(r.code, r.stderr) for r in at_work.results]}")
    job.outcome.line = "goes on"
    job.keeps(saved)


@fault("half-open connection", long=True, needs_lab=True)
def half_open(job: Job) -> None:
    """The host is cut off and its process dies there, so that nobody is told; then the link is back."""
    at_work = LabJob(job, TIMEOUT_S)
    with at_work.running() as cluster:
        saved, pids = job.saved(), at_work.pids()
        cluster.cut(2)
        os.kill(pids[2], signal.SIGKILL)
        job.happens(TIMEOUT_S)
        descriptor = os.pidfd_open(pids[2]) if Path(f"/proc/{pids[2]}").exists() else None
        if descriptor is not None:
            select.select([descriptor], [], [], 5)
            os.close(descriptor)
        cluster.mend(2)
    lines = at_work.lines()
    job.outcome.line = next((line for line in lines if "rank 2 is lost" in line), "")
    job.check(bool(job.outcome.line), f"nobody names rank 2: {lines}")
    job.keeps(saved)
