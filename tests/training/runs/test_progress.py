"""What a user sees: a line an epoch on stderr, from rank 0 alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from paceline.training.runs.progress import Progress
from training_jobs import job

ENTRY = {"epoch": 2, "loss": 0.123456, "accuracy": 0.98765, "seconds": 1.5}


@pytest.fixture
def run() -> Any:
    return job("somewhere", label="mine")


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_says_something(rank: int, run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(rank, run)
    progress.say("measuring")
    progress.epoch_done(ENTRY)
    with progress.epochs(10) as step:
        for number in range(10):
            step(number)
    out, err = capsys.readouterr()
    lines = ["mine: measuring", "mine: epoch 2/3  loss 0.1235  accuracy 98.77 %  1.50 s"]
    assert out == "" and err.splitlines() == ([] if rank else lines)


def test_on_a_terminal_a_bar_takes_the_place_of_all_lines_but_the_last(
    run: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = Progress(0, run)
    progress.epoch_done(ENTRY)
    assert capsys.readouterr().err == ""
    progress.epoch_done({**ENTRY, "epoch": 3})
    assert capsys.readouterr().err.startswith("mine: epoch 3/3")
    with progress.epochs(10) as step:
        for number in range(10):
            step(number)
