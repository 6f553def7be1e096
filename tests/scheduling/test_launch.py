"""Launches: what a job that is to run may state."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.launch import Launch

HERE = Path("/data")


def test_a_job_is_what_its_json_says() -> None:
    job = training(HERE, environment={"A": "b c"}, grace_s=5)
    assert Launch.from_json(job.to_json()) == job and job.is_paceline


def test_a_job_that_an_earlier_version_wrote_is_read() -> None:
    written = {
        "name": "a", "command": ["sh", "-c", "true"], "checkpoint": "/data/a", "directory": "/data", "environment": {"A": "b"},
        "min_devices": 2, "max_devices": 2, "grace_s": 5.0, "signal": "USR1", "model": "resnet-50", "batch": 64,
        "samples": 6400.0, "duration_s": 0.0, "weight": 2.0, "deadline_s": math.inf, "virtual_cluster": "v", "owner": "o",
        "device_types": ["T4"],
    }  # fmt: skip
    launch = Launch.from_json(written)
    assert launch.to_json() == written and launch.job.devices == 2 and launch.sizes == (2,)


@pytest.mark.parametrize(
    ("more", "sizes"),
    [({}, (1, 2, 4)), ({"min_devices": 2, "max_devices": 8}, (2, 4, 8)), ({"min_devices": 4}, (4,))],
    ids=str,
)
def test_the_global_batch_divides_among_its_devices(more: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert training(HERE, **more).sizes == sizes
    words = ("paceline", "train", "--global-batch=60")
    assert training(HERE, command=words, max_devices=6).sizes == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"name": "a/b"}, "'a/b' is not a job's name"),
        ({"name": "-x"}, "is not a job's name"),
        ({"command": ()}, "has no command"),
        ({"max_devices": 0}, "1 to 0 devices"),
        ({"max_devices": 2}, "is elastic, and only paceline train can be"),
        ({"signal": "INT"}, "unknown signal 'INT'"),
        ({"grace_s": -1}, "a grace of -1 s"),
        ({"grace_s": float("nan")}, "a grace of nan s"),
        ({"environment": {"A B": "c"}}, "'A B' is not the name of a variable"),
        ({"command": ("paceline", "train", "--workers", "2")}, "gives --workers, which the executor sets"),
        ({"command": ("paceline", "train", "--resume=x")}, "gives --resume"),
        ({"command": ("paceline", "train"), "signal": "USR1"}, "ends with TERM, not USR1"),
        ({"command": ("paceline", "train"), "min_devices": 3, "max_devices": 3}, "64 does not divide among 3 to 3"),
        ({"command": ("paceline", "train", "--epochs", "x"), "max_devices": 2}, ""),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused(more: dict[str, Any], reason: str) -> None:
    if not reason:
        with pytest.raises(UserError, match="--epochs x; give a whole number"):
            script(HERE, "true", **more).is_complete({"epoch": 1})
        return
    with pytest.raises(UserError) as error:
        script(HERE, "true", **more)
    assert reason in str(error.value)
