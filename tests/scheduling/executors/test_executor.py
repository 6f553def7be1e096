"""What a job may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from live_jobs import script, training
from paceline.errors import UserError
from paceline.scheduling.executors.executor import LiveJob, check_fits

HERE = Path("/data")


def test_a_job_is_what_its_json_says() -> None:
    job = training(HERE, environment={"A": "b c"}, grace_s=5)
    assert LiveJob.from_json(job.to_json()) == job and job.is_paceline


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


def test_a_placement_names_nodes_and_devices_that_there_are() -> None:
    nodes = (("h0", 2), ("h1", 2))
    check_fits(training(HERE), {"h0": 2, "h1": 2}, nodes)
    for placement, reason in (
        ({"h9": 1}, "unknown node 'h9'"),
        ({"h0": 3}, "3 devices of node h0; it has 2"),
        ({"h0": 2, "h1": 1}, "on 3 devices; it runs on 1, 2, 4"),
        ({}, "on 0 devices"),
    ):
        with pytest.raises(UserError, match=reason):
            check_fits(training(HERE), placement, nodes)
