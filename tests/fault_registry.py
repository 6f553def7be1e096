"""The faults by name, and what each takes."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fault_jobs import Job, Outcome
from fault_ranks import FEATURES
from paceline import lab
from warm_python import TESTS, executable

FAULTS: dict[str, Callable[[Outcome, Path], None]] = {}
LONG: set[str] = set()
"""Those that take more than about three seconds."""
NEEDS_LAB: set[str] = set()


def fault(name: str, *, long: bool = False, needs_lab: bool = False) -> Callable[[Callable[[Job], None]], Any]:
    """Register a fault: a function of a job that is not started."""

    def register(inject: Callable[[Job], None]) -> Callable[[Job], None]:
        def run(outcome: Outcome, folder: Path) -> None:
            job = Job(outcome, folder)
            try:
                inject(job)
            finally:
                job.clean_up()

        FAULTS[name] = run
        if long:
            LONG.add(name)
        if needs_lab:
            NEEDS_LAB.add(name)
        return inject

    return register


def run(name: str, folder: Path) -> Outcome:
    """Inject a fault once."""
    _warm()
    outcome = Outcome(name)
    folder.mkdir(parents=True, exist_ok=True)
    FAULTS[name](outcome, folder.resolve())
    return outcome


@functools.cache
def _warm() -> None:
    """The time of imports is nobody's fault."""
    subprocess.run(
        [executable(), "-c", "import paceline.training.runs.worker"], check=True, timeout=200, env=FEATURES, cwd=TESTS
    )


def missing(name: str) -> str:
    """What this machine lacks for a fault; empty if nothing."""
    if name in NEEDS_LAB and lab.missing():
        return f"needs for an emulated cluster: {'; '.join(lab.missing())}"
    if name == "full disk" and os.geteuid() != 0:
        return "needs root, to mount a small file system"
    return ""
