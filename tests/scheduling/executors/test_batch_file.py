"""Batch files, whole: what changes here changes what runs on a cluster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from live_jobs import script, training
from paceline.scheduling.executors.batch_file import batch_file

GOLDEN = Path(__file__).parents[2] / "data" / "slurm"
BASE = Path("/shared")
FILES = {
    "elastic.sh": lambda: batch_file(
        training(BASE, "v1.2", directory="/shared/my code", environment={"NOTE": "it's"}),
        {"h1": 2, "h2": 1},
        record=Path("/shared/jobs/v1.2.json"),
        master="10.0.0.1",
        slurm_name="paceline-v1.2",
        python="/opt/bin/python",
        options=("--partition=long", "--account=ours"),
    ),
    "gpus.sh": lambda: batch_file(
        training(BASE, directory="/shared"),
        {"h1": 4},
        record=Path("/shared/jobs/job.json"),
        master="10.0.0.1",
        slurm_name="paceline-job",
        python="/opt/bin/python",
        gpus=True,
    ),
    "rigid.sh": lambda: batch_file(
        script(BASE, "train.sh --save here", directory="/shared", signal="USR1", min_devices=2, max_devices=2),
        {"h1": 1, "h2": 1},
        record=Path("/shared/jobs/job.json"),
        master="10.0.0.1",
        slurm_name="paceline-job",
        python="/opt/bin/python",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_the_batch_file(name: str) -> None:
    text = FILES[name]()
    assert text == (GOLDEN / name).read_text()
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, timeout=100)
    assert (checked.returncode, checked.stderr) == (0, "")
