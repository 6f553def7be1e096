"""What one worker takes under ``torchrun … -m paceline.training``: the options of ``paceline train`` but for the workers."""

from __future__ import annotations

import shlex

import pytest

from paceline.cli import build_parser
from paceline.cli.arguments.training_arguments import training_run
from paceline.cli.worker import worker_options
from paceline.errors import UserError

WORDS = shlex.split("--model lenet5 --data digits --compression terngrad --global-batch 64 --epochs 2 --seed 7 --out out")


def test_a_worker_is_told_the_same_run_as_the_command() -> None:
    options = build_parser("train").parse_args(["train", "--workers", "4", *WORDS])
    assert worker_options(WORDS).run(4) == training_run(options)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--epoch", "2"], r"unknown option '--epoch'; nearest: --epochs"),
        (["--workers", "4"], r"unknown option '--workers'"),
        (["--epochs", "two"], r"--epochs: 'two' is not a whole number; see torchrun … -m paceline.training --help"),
        (["--model", "lenet5"], r"--data is missing"),
    ],
)
def test_a_mistake_names_the_nearest_option_and_prints_no_usage(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=what):
        worker_options(words).run(2)
    assert capsys.readouterr() == ("", "")
