"""Faults of disks and checkpoints."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fault_jobs import Job
from fault_ranks import LIMIT_S
from fault_registry import fault
from paceline.training.runs.checkpoints import checkpoint


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@fault("full disk")
def disk_full(job: Job) -> None:
    with small_disk(job.folder / "small", "2m") as disk:
        job.out = disk / "out"
        job.start().trains()
        saved = job.saved()
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
        job.happens()
        job.check(job.ranks[0].said("No space left on device", LIMIT_S), "a full disk is not said")
        line = next((line for rank in job.ranks for line in rank.lines if "No space left" in line), "")
        job.check("rank " in line and "training continues" in line, "the line does not name the rank")
        job.keeps(saved)
        ballast.unlink()
        known = len(job.ranks[0].lines)
        job.check(job.ranks[0].said(": epoch ", LIMIT_S, known), "it does not go on")
        job.goes_on(line)


def _go_on_after(job: Job, damage: Callable[[Path], None], words: str) -> None:
    job.start().trains()
    job.stop()
    before = checkpoint.read(job.out / checkpoint.PREVIOUS)
    damage(job.out / checkpoint.FILE)
    more = ["--resume", str(job.out), "--seed", "0"]  # what is not given is the newest checkpoint's
    job.happens(20)  # a busy machine starts ranks slowly
    job.start(more, more)
    job.check(job.ranks[0].said("going on from the previous checkpoint"), "it does not say that it falls back")
    line = next((line for line in job.ranks[0].lines if "going on from the previous" in line), "")
    job.check(words in line and checkpoint.place(before) in line, f"the line is {line}")
    job.outcome.line = line
    job.goes_on()
    job.keeps((before["epoch"], before["step"]))


@fault("truncated checkpoint", long=True)
def truncated(job: Job) -> None:
    _go_on_after(job, lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read")


@fault("foreign checkpoint", long=True)
def foreign(job: Job) -> None:
    def copy_of_another(path: Path) -> None:
        state = checkpoint.read(path)
        from dataclasses import replace

        run = replace(state.pop("run"), seed=99)
        other = path.parent / "other"
        other.mkdir()
        keep = {name: state[name] for name in ("model", "optimizer", "curve", "workers")}
        checkpoint.save(other, run, state["epoch"] + 7, {**keep, "parts": state["parts"]}, step=0)
        shutil.copy(other / checkpoint.FILE, path)

    _go_on_after(job, copy_of_another, "seed 99 -> 0")
