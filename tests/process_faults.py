"""Faults of processes: killed, stopped, interrupted, slow, with a clock that jumps, or two at once."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from fault_jobs import Job
from fault_ranks import LIMIT_S, PLAIN, TIMEOUT_S, WORDS
from fault_registry import fault

SHARDED = ["--sharding", "zero3", "--compression", "topk", "--exchange", "sharded"]
LOCAL = ["--sync-every", "4", "--compression", "int8"]


@fault("kill -9", long=True)
def killed(job: Job) -> None:
    job.start().trains()
    saved = job.saved()
    job.ranks[1].signal(signal.SIGKILL)
    job.happens()
    job.ends(1, None)
    job.says("rank 1 is lost")
    job.keeps(saved)


@fault("kill -9, sharded", long=True)
def killed_sharded(job: Job) -> None:
    job.words = [*PLAIN, *SHARDED]
    killed(job)


@fault("kill -9, local steps", long=True)
def killed_local(job: Job) -> None:
    job.words = [*PLAIN, *LOCAL]
    killed(job)


@fault("SIGSTOP", long=True)
def stopped(job: Job) -> None:
    job.words = [*PLAIN, "--timeout", f"{TIMEOUT_S:g}s"]
    job.start().trains()
    saved, pid = job.saved(), job.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    job.happens(TIMEOUT_S)
    while not job.ranks[0].ended_at and time.monotonic() < job.fault_at + LIMIT_S:
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)  # it finds its peer gone
    job.ends(1, 1)
    job.says("rank 1 is lost")
    job.keeps(saved)


@fault("one slow rank")
def slow(job: Job) -> None:
    job.start().trains()
    pid = job.ranks[1].pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(pid, signal.SIGCONT)
    job.happens()
    job.goes_on()


@fault("SIGTERM")
def terminated(job: Job) -> None:
    job.start().trains()
    job.happens()
    job.stop()
    job.says("interrupted by SIGTERM; the checkpoint of ")


@fault("SIGTERM, sharded")
def terminated_sharded(job: Job) -> None:
    job.words = [*PLAIN, *SHARDED]
    terminated(job)


@fault("SIGTERM, local steps")
def terminated_local(job: Job) -> None:
    job.words = [*PLAIN, *LOCAL]
    terminated(job)


@fault("SIGTERM on one rank")
def one_terminated(job: Job) -> None:
    job.start().trains()
    job.ranks[1].signal(signal.SIGTERM)
    job.happens()
    job.ends(143, 143)
    job.says("interrupted by SIGTERM; the checkpoint of ")
    job.keeps()


@fault("Ctrl-C")
def interrupted(job: Job) -> None:
    job.start().trains()
    for rank in job.ranks:
        rank.signal(signal.SIGINT)
    job.happens()
    job.ends(130, 130)
    job.says("interrupted by SIGINT; the checkpoint of ")
    job.check(job.ranks[0].said("stopped after ", 1), "no summary")
    job.keeps()


@fault("Ctrl-C twice")
def interrupted_twice(job: Job) -> None:
    job.start().trains()
    saved = job.saved()
    pids = [rank.pid for rank in job.ranks]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that no rank is through with the first before the second
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    time.sleep(0.02)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
    job.happens()
    job.ends(130, 130)
    job.says("interrupted ")
    job.keeps(saved)


@fault("clock jump")
def clock(job: Job) -> None:
    job.words = ["--model", "faulty_module:clock", *WORDS]
    job.start().trains(4)
    job.happens()
    job.goes_on()


@fault("two runs with one --out")
def twice(job: Job) -> None:
    job.start().trains()
    second = Job(job.outcome, job.folder / "second", out=job.out)
    second.folder.mkdir()
    try:
        job.happens()
        second.start()
        second.fault_at = job.fault_at
        second.ends(2, 2)
        second.says("is in use by process ")
    finally:
        second.clean_up()
    job.goes_on(second.ranks[0].error)
