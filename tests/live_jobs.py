"""Jobs that cost no time: shell scripts, and a stand-in for the interpreter that runs ``paceline train``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.scheduling.executors.executor import Executor, Observed
from paceline.scheduling.launch import Launch

TRAINING = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words = sys.argv[1:]
rank, workers = int(os.environ.get("SLURM_PROCID", 0)), os.environ.get("SLURM_STEP_NUM_TASKS")
if "paceline.scheduling.executors.rank" in words:  # under srun
    job = json.loads(pathlib.Path(words[-1]).read_text())["job"]
    words = [*job["command"], "--out", job["checkpoint"], "--workers", workers]
value = lambda name: words[words.index(name) + 1]
out, workers, epochs = pathlib.Path(value("--out")), int(value("--workers")), int(value("--epochs"))
out.mkdir(parents=True, exist_ok=True)
done = json.loads((out / "checkpoint.pt").read_text()) if (out / "checkpoint.pt").exists() else 0
def write(name, text):  # whole or not at all: a signal may come in between
    (out / "new").write_text(text)
    (out / "new").replace(out / name)
for epoch in range(done + 1, epochs + 1):
    time.sleep(0.05)
    while (out / "last").exists() and epoch > int((out / "last").read_text()):
        time.sleep(0.02)
    if rank:
        continue
    with (out / "epochs").open("a") as file:
        file.write(f"{epoch} {workers}\\n")
    write("checkpoint.pt", str(epoch))
    reached = {"epoch": epoch, "step": 10 * epoch, "samples_per_s": 1e3, "workers": workers}
    write("progress.json", json.dumps(reached))
"""
"""Trains epochs of a twentieth of a second, each with a checkpoint, and waits after the one that a file ``last`` names.

``epochs`` has a line for each: its number and the workers.
"""


def stand_in(directory: Path) -> str:
    """An interpreter that trains without training."""
    path = directory / "python"
    path.write_text(TRAINING)
    path.chmod(0o755)
    return str(path)


def training(base: Path, name: str = "job", epochs: int = 6, **more: Any) -> Launch:
    """A job of 1 to 4 devices."""
    words = ("paceline", "train", "--model", "lenet5", "--data", "digits", "--epochs", str(epochs))
    return Launch.of(**{"name": name, "command": words, "checkpoint": str(base / name), "max_devices": 4, **more})


def script(base: Path, text: str, name: str = "job", **more: Any) -> Launch:
    """A rigid job of one device: a line of shell."""
    return Launch.of(**{"name": name, "command": ("sh", "-c", text), "checkpoint": str(base / name), **more})


def until(
    executor: Executor, name: str, wanted: str | Callable[[Observed], bool], within_s: float = 100.0, every_s: float = 0.02
) -> Observed:
    """Poll until the job is in a phase, or as wanted."""
    deadline = time.monotonic() + within_s
    while True:
        seen = executor.poll()[name]
        if seen.phase == wanted if isinstance(wanted, str) else wanted(seen):
            return seen
        assert time.monotonic() < deadline, seen
        time.sleep(every_s)
