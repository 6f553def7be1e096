"""Jobs that cost no time: shell scripts, and a stand-in for the interpreter that runs ``paceline train``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.scheduling.executors.executor import Executor, LiveJob, Observed

TRAINING = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
out, workers, epochs = pathlib.Path(value("--out")), int(value("--workers")), int(value("--epochs"))
out.mkdir(parents=True, exist_ok=True)
done = json.loads((out / "checkpoint.pt").read_text()) if "--resume" in words else 0
for epoch in range(done + 1, epochs + 1):
    time.sleep(0.1)
    (out / "checkpoint.pt").write_text(str(epoch))
    reached = {"epoch": epoch, "step": 10 * epoch, "samples_per_s": 1e3, "workers": workers}
    (out / "progress.tmp").write_text(json.dumps(reached))
    (out / "progress.tmp").replace(out / "progress.json")
    with (out / "epochs").open("a") as file:
        file.write(f"{epoch} {workers}\\n")
"""
"""Trains epochs of a tenth of a second, each with a checkpoint; ``epochs`` has a line for each: its number and the workers."""


def stand_in(directory: Path) -> str:
    """An interpreter that trains without training."""
    path = directory / "python"
    path.write_text(TRAINING)
    path.chmod(0o755)
    return str(path)


def training(base: Path, name: str = "job", epochs: int = 6, **more: Any) -> LiveJob:
    """A job of 1 to 4 devices."""
    words = ("paceline", "train", "--model", "lenet5", "--data", "digits", "--epochs", str(epochs))
    return LiveJob(**{"name": name, "command": words, "checkpoint": str(base / name), "max_devices": 4, **more})


def script(base: Path, text: str, name: str = "job", **more: Any) -> LiveJob:
    """A rigid job of one device: a line of shell."""
    return LiveJob(**{"name": name, "command": ("sh", "-c", text), "checkpoint": str(base / name), **more})


def until(
    executor: Executor, name: str, wanted: str | Callable[[Observed], bool], within_s: float = 20.0, every_s: float = 0.02
) -> Observed:
    """Poll until the job is in a phase, or as wanted."""
    deadline = time.monotonic() + within_s
    while True:
        seen = executor.poll()[name]
        if seen.phase == wanted if isinstance(wanted, str) else wanted(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(every_s)
